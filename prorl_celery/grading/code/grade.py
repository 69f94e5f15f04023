"""From a solution to a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable

from prorl_celery.grading.code.forms import Cases
from prorl_celery.grading.code.functions import grade_function
from prorl_celery.grading.code.problem import Problem
from prorl_celery.grading.code.programs import grade_program
from prorl_celery.grading.code.verdict import Verdict
from prorl_celery.sandbox.base import Sandbox

_FENCE = re.compile(
    r"^[ \t]*```(?:python3?|py|cpp|c\+\+)[ \t]*\r?\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL | re.IGNORECASE
)


def grade(start: Callable[[], Sandbox], problem: Problem, solution: bytes) -> Verdict:
    """Grade a solution in sandboxes that `start` gives, each new.

    Raises: `EvalError` when that was not possible by no fault of the solution, `SandboxError`, what cancel raises.
    """
    grader = grade_program if isinstance(problem.tests, Cases) else grade_function
    return grader(start, problem, solution)


def last_fence(answer: str) -> str | None:
    """The last fenced block of code of an answer; None when there is none, or it does not end."""
    found = _FENCE.findall(answer)
    return found[-1] if found else None
