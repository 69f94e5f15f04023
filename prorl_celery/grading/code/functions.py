"""Grades a function by hidden tests that are Python: `check(candidate)`, or assertions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prorl_celery.errors import EvalError
from prorl_celery.grading.code.forms import Asserts, Check
from prorl_celery.grading.code.inside.functions import WALL_FACTOR
from prorl_celery.grading.code.problem import Problem
from prorl_celery.grading.code.slices import run_slice
from prorl_celery.grading.code.verdict import Failure, Kind, Verdict
from prorl_celery.sandbox.base import Sandbox

SPARE_SECONDS = 30.0
OUTPUT_BYTES = 16 << 20
_KINDS: dict[str, Kind] = {
    "wrong answer": "wrong answer",
    "time limit": "time limit",
    "output limit": "output limit",
}


def grade_function(start: Callable[[], Sandbox], problem: Problem, solution: bytes) -> Verdict:
    """Run the tests in a new sandbox that `start` gives.

    Raises: `EvalError` when they could not begin, `SandboxError`, and what the cancel signal raises.
    """
    tests, stop = problem.tests, problem.scoring == "all"
    assert isinstance(tests, Check | Asserts)
    if isinstance(tests, Check):
        what: dict[str, Any] = {
            "helpers": tests.helpers,
            "test": tests.source,
            "asserts": None,
            "names": [tests.entry_point],
        }
        of = 1
    else:
        what = {"helpers": "", "test": tests.setup, "asserts": tests.statements, "names": tests.names}
        of = len(tests.statements)
    each = problem.time_limit_seconds
    seconds = min(of * (WALL_FACTOR * each + SPARE_SECONDS), problem.total_seconds) + SPARE_SECONDS
    limits = {
        "cpu_seconds": seconds,
        "wall_seconds": seconds,
        "memory_bytes": problem.memory_limit_bytes,
        "output_bytes": OUTPUT_BYTES,
    }
    sandbox = start()
    try:
        head = {**what, "limits": limits, "seconds": each, "stop": stop}
        spoken = run_slice(sandbox, "functions", head, [solution], seconds=seconds + SPARE_SECONDS)
    finally:
        sandbox.stop()
    passed, first = 0, None
    for frame in spoken.frames:
        kind, why = frame.head["kind"], frame.parts[0].decode("utf-8", "replace")
        if not kind:
            passed += 1
            continue
        first = first or Failure(frame.number, _KINDS.get(kind, "runtime error"), why)
    if not spoken.over and first is None:
        first = Failure(len(spoken.frames), "runtime error", "it ended or stopped its judge, or did not end in time")
    if first is None and passed < of:
        raise EvalError(f"{passed} of {of} tests were run")
    return Verdict(passed, of, first)
