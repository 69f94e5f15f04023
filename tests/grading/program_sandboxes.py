"""Grades solutions in real sandboxes of one keeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prorl_celery.grading.code.grade import grade
from prorl_celery.grading.code.problem import problem_of
from prorl_celery.sandbox.base import Sandbox, SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

ECHO = {
    "prompt": "Print what you read.",
    "tests": [{"input": f"{n}\n", "output": f"{n}"} for n in range(12)],
    "time_limit": 1,
}

Start = Callable[[], Sandbox]


@contextmanager
def sandboxes(run_dir: Path) -> Iterator[Start]:
    """A function that starts a sandbox. What it started ends with the keeper."""
    with KeeperProcess(Settings(run_dir=run_dir, node="n1")) as keeper, NeverCancelled() as never:
        yield lambda: keeper.client.start(SandboxSpec(job_id="j", attempt=1), cancel=never, timeout=30)


def graded(start: Start, solution: str, instance: dict[str, Any] = ECHO, **fields: Any) -> dict[str, Any]:
    """The fields of an eval."""
    problem = problem_of({**instance, **fields})
    return grade(start, problem, solution.encode("utf-8", "surrogateescape")).to_json(problem.scoring)


def kind_of(said: dict[str, Any]) -> str:
    """The kind of the first failure; empty for none."""
    return str(said.get("failed", {}).get("kind", ""))
