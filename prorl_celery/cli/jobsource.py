"""Where `prorl submit` has its jobs from: a file or a data set, checked row by row before any of it is sent."""

from __future__ import annotations

import hashlib
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prorl_celery.cli.jobfile import JobOptions, body_of, digest_of, human_eval_bodies, job_of, numbered, text_of
from prorl_celery.data.checking import Report, Seen, Twice, examine, mapped, without
from prorl_celery.data.columns import ToInstance
from prorl_celery.data.files import Bad, Row, rows_of
from prorl_celery.errors import BadInstance, SettingsError
from prorl_celery.handlers.base import Handler
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.models import JobRequest
from prorl_celery.tools.toolbox import TOOL_NAMES

Entries = Iterator[Row | Bad]

GYM = "reasoning_gym:"
DATASETS = ("human-eval", GYM + "TASK[:COUNT[:SEED]]")


def dataset_bodies(name: str) -> Iterable[dict[str, Any]]:
    """The job bodies of a data set. Raises `SettingsError` for one that is none."""
    if name == "human-eval":
        return human_eval_bodies()
    if name.startswith(GYM):
        from prorl_celery.data.gym import reasoning_gym_instances

        return ({"instance": instance} for instance in reasoning_gym_instances(name.removeprefix(GYM)))
    raise SettingsError(f"no data set {name!r}; there are: {', '.join(DATASETS)}")


def rows_of_dataset(name: str) -> Entries:
    """Its bodies as rows."""
    for number, body in enumerate(dataset_bodies(name), 1):
        yield Row(number, f"row {number}", body)


class JobSource:
    """Rows that can be read again and again, and the jobs that they are."""

    def __init__(
        self,
        name: str,
        rows: Callable[[], Entries],
        options: JobOptions,
        *,
        to_instance: ToInstance | None = None,
        limit: int | None = None,
    ) -> None:
        self.name = name
        self._rows = rows
        self._options = options
        self._to_instance = to_instance
        self._limit = limit
        self._leave_out = array("Q")
        self._seen: tuple[Seen, Seen] | None = None
        """Digests of jobs and of instance_ids, once they were checked."""

    @classmethod
    def of_file(cls, file: Path, options: JobOptions, **more: Any) -> JobSource:
        """The rows of a file. Reading them raises `SettingsError` where the file is not what it was at this moment."""
        before = _stamp(file)

        def rows() -> Entries:
            _check_unchanged(file, before)
            yield from rows_of(file)
            _check_unchanged(file, before)

        return cls(str(file), rows, options, **more)

    def check(self, handlers: HandlerRegistry | None) -> Report:
        """Look at all rows as the service would, with these handlers. From then on `jobs` leaves out what is bad."""
        seen = Seen(), Seen()

        def look(body: dict[str, Any]) -> tuple[str, bool]:
            job = job_of(body, self._options)
            text = _text(job)
            request = _request(text)
            checked = _look(request, handlers)
            seen[0].add(int(digest_of(text), 16))
            if (identity := _identity(job["instance"])) is not None:
                seen[1].add(identity)
            return request.instance.data_source, checked

        report = examine(self._bodies(), look)
        self._leave_out, self._seen = report.bad_rows, seen
        return report

    def repeated(self) -> tuple[Twice, Twice]:
        """After `check`: rows that are the same as another, and others that have the `instance_id` of another."""
        jobs, ids = self._seen or (Seen(), Seen())
        same, same_id = Twice(jobs.repeated), Twice(ids.repeated)
        if jobs.repeated or ids.repeated:
            for row in self._good():
                job = job_of(row.value, self._options)
                if same.add(int(digest_of(text_of(job)), 16), row.where, "is the same as"):
                    continue
                if (identity := _identity(job["instance"])) is not None:
                    same_id.add(identity, row.where, "is another instance with the instance_id of")
        return same, same_id

    def jobs(self) -> Iterator[dict[str, Any]]:
        """All jobs, with ids. Raises `SettingsError` for a row that is bad, and was not when it was checked."""
        jobs = (job_of(row.value, self._options) for row in self._good())
        return numbered(jobs, self._options.samples, None if self._seen is None else self._seen[0].repeated)

    def _good(self) -> Iterator[Row]:
        for row in without(self._bodies(), self._leave_out):
            if isinstance(row, Bad):
                raise SettingsError(f"{self.name}, {row}")
            yield row

    def _bodies(self) -> Entries:
        return islice(mapped(self._rows(), self._body), self._limit)

    def _body(self, value: dict[str, Any]) -> dict[str, Any]:
        return body_of(value if self._to_instance is None else self._to_instance(value))


def _stamp(file: Path) -> tuple[int, ...]:
    """Tells whether a file is still the same. Raises `SettingsError` for what cannot be read twice, such as a pipe."""
    try:
        found = file.stat()
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise SettingsError(
            f"{file} is no plain file: all rows are checked before the first is sent, so it is read twice"
        )
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check_unchanged(file: Path, before: tuple[int, ...]) -> None:
    if _stamp(file) != before:
        raise SettingsError(
            f"{file} was changed since its rows were checked; the same command goes on with what it is now"
        )


def _text(job: dict[str, Any]) -> bytes:
    try:
        return text_of(job)
    except (ValueError, RecursionError) as error:
        raise BadInstance(f"is no JSON that can be sent: {error}") from error


def _request(text: bytes) -> JobRequest:
    """The job as the service reads it. Raises `BadInstance` for the first field that it would refuse."""
    try:
        return JobRequest.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise BadInstance(first["msg"].removeprefix("Value error, "), field=field or None) from error


def _look(job: JobRequest, handlers: HandlerRegistry | None) -> bool:
    """Whether the job's handler is here and has looked at the instance. Raises `BadInstance`."""
    if unknown := [name for name in job.agent.tools or () if name not in TOOL_NAMES]:
        raise BadInstance(f"unknown tools: {', '.join(unknown)}", field="agent.tools")
    handler = _handler(handlers, job.instance.data_source)
    if handler is None:
        return False
    instance = job.instance.data()
    try:
        handler.validate(instance)
        if job.reward_url is not None:
            handler.ground_truth(instance)
    except BadInstance as error:
        raise BadInstance(str(error), field=f"instance.{error.field}" if error.field else "instance") from error
    except Exception as error:  # a handler that stumbles over an instance has refused it
        message = f"the handler could not read the instance ({type(error).__name__}: {error})"[:500]
        raise BadInstance(message, field="instance") from error
    return True


def _handler(handlers: HandlerRegistry | None, data_source: str) -> Handler | None:
    try:
        return None if handlers is None else handlers.find(data_source)
    except BadInstance:
        return None


def _identity(instance: Mapping[str, Any]) -> int | None:
    """A digest of which instance this is said to be; None where it does not say."""
    if instance.get("instance_id") is None:
        return None
    name = f"{instance['data_source']}\0{instance['instance_id']}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
