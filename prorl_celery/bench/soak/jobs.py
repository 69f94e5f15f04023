"""The soak's jobs: problems with tests in a sandbox, sums without one, shell commands that must not run twice."""

from __future__ import annotations

import random
from typing import Any

from prorl_celery.testing.scripted.oracle import human_eval_rows

SOLVER, OBEYER = "scripted", "scripted-obey"
"""The models: one solves, one does as it is told."""


def soak_jobs(count: int, seed: int) -> list[dict[str, Any]]:
    """So many jobs, the same for the same seed. Every one of them is worth a reward of 1."""
    rng = random.Random(seed)
    problems = human_eval_rows()
    kinds = rng.choices(("code", "sum", "steps", "toy"), (30, 25, 30, 15), k=count)
    return [_job(f"soak-{index}", kind, rng, problems) for index, kind in enumerate(kinds)]


def _job(job_id: str, kind: str, rng: random.Random, problems: list[dict[str, Any]]) -> dict[str, Any]:
    job: dict[str, Any] = {"job_id": job_id, "max_attempts": 10, "tags": {"kind": kind}}
    if kind == "code":
        problem = rng.choice(problems)
        job["instance"] = {"data_source": "code", "instance_id": problem["task_id"], **problem}
        job["sampling_params"] = {"model": SOLVER, "max_tokens": 1500}
    elif kind == "sum":
        left, right = rng.randrange(100), rng.randrange(100)
        job["instance"] = {"data_source": "math", "problem": f"What is {left} + {right}?", "answer": left + right}
        job["agent"] = {"tools": []}
        job["sampling_params"] = {"model": SOLVER}
    elif kind == "steps":
        count = rng.randrange(3, 7)
        commands = [f"sleep {rng.uniform(0, 0.6):.2f}; echo {n} >> steps" for n in range(1, count + 1)]
        steps = [str(n) for n in range(1, count + 1)]
        job["instance"] = {"data_source": "steps", "commands": commands, "steps": steps}
        job["sampling_params"] = {"model": OBEYER}
    else:
        task = "\n".join(f"$ echo step-{n}" for n in range(1, 5))
        job["instance"] = {"data_source": "toy", "problem": task}
        job["sampling_params"] = {"model": OBEYER}
    return job
