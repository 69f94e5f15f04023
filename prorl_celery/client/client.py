"""The client of the HTTP API.

    client = Client("http://127.0.0.1:8006")
    job = client.submit({"instance": {"data_source": "math", "problem": "1+1", "answer": "2"}})
    if client.wait(job.job_id, timeout=600).state == "completed":
        print(client.result(job.job_id).reward)

Given a url and perhaps a token, gives statuses and results as models. Every method raises `ApiError` with the problem
document when the service refuses, and `ApiUnavailable` when it gives no answer in time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload
from urllib.parse import quote

from pydantic import BaseModel, RootModel, ValidationError

from prorl_celery.client.batches import LOOP_SECONDS, Batches
from prorl_celery.client.events import JobEvent, follow
from prorl_celery.client.transport import Reply, Transport
from prorl_celery.errors import ApiError
from prorl_celery.jobs.batch_models import BatchRequest, GroupView
from prorl_celery.jobs.models import TERMINAL, JobRequest, JobStatus, Result

Model = TypeVar("Model", bound=BaseModel)

Job = JobRequest | Mapping[str, Any]
"""A job as a model, or as the JSON of the API."""

LIST_LIMIT = 1000
"""Jobs in one call; a longer list is sent in several."""

POLL_SECONDS = 30.0
"""Length of one long-poll."""


class ResultPage(BaseModel):
    """Results in order of finishing. Go on with `after=page.next`. `truncated`: earlier ones are no longer kept."""

    results: list[Result]
    next: str | None
    truncated: bool


class _Statuses(BaseModel):
    jobs: list[JobStatus]
    next: str | None = None


class _Backends(BaseModel):
    backends: list[dict[str, Any]]


class _Nodes(BaseModel):
    nodes: list[dict[str, Any]]


_Object = RootModel[dict[str, Any]]


class Client:
    """One service. Thread-safe; a context manager. `patience` is how long, in seconds, a call goes on trying while the
    service is busy (429), restarting or without its Redis (503)."""

    def __init__(self, url: str, token: str | None = None, *, patience: float = 60.0) -> None:
        self._http = Transport(url, token, patience)
        self.batches = Batches(self._http)
        """Batches, call by call."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; waiting calls of other threads end with `ApiError`."""
        self._http.close()

    @overload
    def submit(self, jobs: Job) -> JobStatus: ...

    @overload
    def submit(self, jobs: Sequence[Job]) -> list[JobStatus]: ...

    def submit(self, jobs: Job | Sequence[Job]) -> JobStatus | list[JobStatus]:
        """Submit one job, or a list (each 1,000 of it are accepted or refused as a whole), and get the statuses.

        A job without an id is given one here, so that a call that is repeated after a lost answer makes no second job.
        """
        if isinstance(jobs, (JobRequest, Mapping)):
            return _read(JobStatus, self._http.call("POST", "/v1/jobs", body=_body(jobs)))
        statuses: list[JobStatus] = []
        bodies = [_body(job) for job in jobs]
        for start in range(0, len(bodies), LIST_LIMIT):
            reply = self._http.call("POST", "/v1/jobs", body={"jobs": bodies[start : start + LIST_LIMIT]})
            statuses += _read(_Statuses, reply).jobs
        return statuses

    def status(self, job_id: str) -> JobStatus:
        """Where a job stands."""
        return _read(JobStatus, self._http.call("GET", _path(job_id)))

    def wait(self, job_id: str, timeout: float) -> JobStatus:
        """Wait until a job has ended. Raises TimeoutError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            seconds = max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))
            reply = self._http.call("GET", _path(job_id), query={"wait": round(seconds, 3)}, wait=seconds)
            status = _read(JobStatus, reply)
            if status.state in TERMINAL:
                return status
            if time.monotonic() >= deadline:
                raise TimeoutError(f"job {job_id} is still {status.state} after {timeout:g} s")
            # The service had no room for another waiter.
            if reply.retry_after is not None:
                self._http.pause(min(reply.retry_after, max(0.0, deadline - time.monotonic())))

    def result(self, job_id: str, *, tokens: bool = True) -> Result:
        """A finished job's result; without `tokens`, the token arrays are empty. `ApiError` 409 while it runs."""
        query = {"tokens": "true" if tokens else "false"}
        return _read(Result, self._http.call("GET", _path(job_id) + "/result", query=query))

    def results_page(
        self,
        after: str | None = None,
        *,
        wait: float = 0.0,
        limit: int = 100,
        tag: str | None = None,
        batch_id: str | None = None,
    ) -> ResultPage:
        """The results that come after a place (None: the oldest kept); waits up to `wait` seconds for the first."""
        query = {"after": after, "wait": wait, "limit": limit, "tag": tag, "batch_id": batch_id}
        reply = self._http.call("GET", "/v1/results", query=query, wait=wait)
        page = _read(ResultPage, reply)
        if not page.results and wait and reply.retry_after is not None:
            self._http.pause(min(reply.retry_after, wait))
        return page

    def results(
        self, after: str | None = None, *, timeout: float, tag: str | None = None, batch_id: str | None = None
    ) -> Iterator[Result]:
        """Results as jobs finish, each at least once, for `timeout` seconds in all. Stop iterating whenever you like.

        To go on later from where you stopped, use `results_page` and keep its `next`.
        """
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            page = self.results_page(after, wait=round(min(POLL_SECONDS, left), 3), tag=tag, batch_id=batch_id)
            yield from page.results
            after = page.next or after

    def cancel(self, job_id: str) -> JobStatus:
        """Cancel a job: a queued one ends at once, a running one shows `cancel_requested` until its worker obeys."""
        return _read(JobStatus, self._http.call("DELETE", _path(job_id)))

    def retry(self, job_id: str) -> JobStatus:
        """Give a job that failed or timed out a new life, with all its attempts; its result is withdrawn. `ApiError`
        409 where it has not failed.
        """
        return _read(JobStatus, self._http.call("POST", _path(job_id) + "/retry"))

    def dead(self) -> Iterator[JobStatus]:
        """The dead letters, the latest first: jobs that failed after their last attempt, though another might help."""
        cursor: str | None = None
        while True:
            reply = self._http.call("GET", "/v1/jobs", query={"dead": "true", "cursor": cursor})
            page = _read(_Statuses, reply)
            yield from page.jobs
            if (cursor := page.next) is None:
                return

    def events(self, job_id: str, *, timeout: float, after: int | None = None) -> Iterator[JobEvent]:
        """What happens to a job, from the start (or after an event's number) to its end: stage changes, turns, tool
        calls. It goes on over lost connections. Raises TimeoutError after `timeout` seconds.
        """
        return follow(self._http, _path(job_id) + "/events", after=after, timeout=timeout)

    def batch(
        self,
        request: BatchRequest | Mapping[str, Any],
        prompts: Iterable[Mapping[str, Any]] | None = None,
        *,
        timeout: float = LOOP_SECONDS,
    ) -> Iterator[GroupView]:
        """Make a batch and give its groups as they complete, exactly `target_groups` of them where the prompts do.

        `prompts` (each `{"prompt_id", "instance"}`) are drawn when the service asks for more. When the loop is left
        before its end, the rest is cancelled. Raises TimeoutError when it takes longer than `timeout` seconds.
        """
        return self.batches.run(request, prompts, timeout)

    def backends(self) -> list[dict[str, Any]]:
        """All inference backends."""
        return _read(_Backends, self._http.call("GET", "/v1/backends")).backends

    def add_backend(self, url: str, model: str, **more: Any) -> dict[str, Any]:
        """Register a backend, or update the one of that url. `more`: kind, tokenizer, weight, api_key and so on."""
        body = {"url": url, "model": model, **more}
        return self._json("POST", "/v1/backends", body=body)

    def remove_backend(self, url: str, *, mode: Literal["drain", "now"] = "drain") -> dict[str, Any]:
        """Take a backend out: `drain` lets its live jobs finish, `now` moves them at their next turn."""
        return self._json("DELETE", "/v1/backends", query={"url": url, "mode": mode})

    def pause(
        self,
        mode: Literal["finish", "abort"] = "finish",
        *,
        model: str | None = None,
        timeout: float = 60.0,
        ttl: float = 600.0,
    ) -> dict[str, Any]:
        """Hold jobs before their next model call; returns when no call is in flight (`complete`), or after `timeout`.

        `abort` gives up the calls in flight, which are made again later. After `ttl` seconds the pause is over.
        """
        body = {"mode": mode, "model": model, "timeout": timeout, "ttl": ttl}
        return self._json("POST", "/v1/policy/pause", body=body, wait=timeout)

    def resume(self, version: int | None = None, *, model: str | None = None) -> dict[str, Any]:
        """Let held jobs go on. `version` is that of the backends' weights from now on; None: they are the same."""
        return self._json("POST", "/v1/policy/resume", body={"version": version, "model": model})

    def service_status(self) -> dict[str, Any]:
        """The service at a glance: queues, slots, counts, leaks, what is missing."""
        return self._json("GET", "/v1/status")

    def nodes(self) -> list[dict[str, Any]]:
        """The live nodes."""
        return _read(_Nodes, self._http.call("GET", "/v1/nodes")).nodes

    def drain(self, node: str, *, undo: bool = False) -> list[dict[str, Any]]:
        """Have a node take no new jobs and work off what it has; `undo`: take jobs again. Its records: `drained` when
        nothing is left on it. `ApiError` 404 where no such node is alive.
        """
        reply = self._http.call("POST", f"/v1/nodes/{quote(node, safe='')}/drain", body={"drain": not undo})
        return _read(_Nodes, reply).nodes

    def _json(self, method: str, path: str, **call: Any) -> dict[str, Any]:
        return _read(_Object, self._http.call(method, path, **call)).root


def _read(model: type[Model], reply: Reply) -> Model:
    try:
        return model.model_validate_json(reply.body)
    except ValidationError as error:
        raise ApiError(f"not an answer of this service (HTTP {reply.status})", status=reply.status) from error


def _path(job_id: str) -> str:
    return "/v1/jobs/" + quote(job_id, safe="")


def _body(job: Job) -> dict[str, Any]:
    if isinstance(job, JobRequest):
        # Defaults are left to the service, but never the id.
        return {**job.model_dump(mode="json", exclude_unset=True), "job_id": job.job_id}
    body = dict(job)
    body.setdefault("job_id", "job-" + secrets.token_hex(8))
    return body
