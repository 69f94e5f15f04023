"""Grades a program by what it prints, or a function by what it returns. What is expected never leaves this side, but
for a checker's own program, which has a sandbox that the solution never entered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from prorl_celery.errors import EvalError
from prorl_celery.grading.code.checkers import checker_of, same_value
from prorl_celery.grading.code.forms import Cases
from prorl_celery.grading.code.problem import CheckerSpec, Problem
from prorl_celery.grading.code.running import Given, Program, Ran, Runner
from prorl_celery.grading.code.verdict import Failure, Kind, Verdict
from prorl_celery.sandbox.base import Sandbox

OUTPUT_BYTES = 1 << 20
LARGEST_OUTPUT_BYTES = 16 << 20
"""An output may be four times as long as the longest that is expected, and this much at most."""
CHECKER_SECONDS = 30.0
CHECKER_MEMORY = 1 << 30
CHECKER_CRASHED = 70
WHY_BYTES = 200

Judge = Callable[[Sequence[Ran]], list[str | None]]
"""For cases that ran well: what is wrong with each output, None for nothing."""


def grade_program(start: Callable[[], Sandbox], problem: Problem, solution: bytes) -> Verdict:
    """Run all cases, or, where all must pass, those up to the first that fails. `start` gives a new sandbox.

    Raises: `EvalError` when that was not possible by no fault of the solution, `SandboxError`, what cancel raises.
    """
    cases = problem.tests
    assert isinstance(cases, Cases)
    longest = 0 if cases.function else max(len(text) for text in cases.outputs)
    runner = Runner(
        start,
        Program(
            source=solution,
            language=problem.language,
            time_limit_seconds=problem.time_limit_seconds,
            memory_limit_bytes=problem.memory_limit_bytes,
            output_limit_bytes=min(OUTPUT_BYTES + 4 * longest, LARGEST_OUTPUT_BYTES),
            entry=cases.function,
        ),
    )
    checking = _CheckerProgram(start, problem.checker, cases) if problem.checker.kind == "program" else None
    try:
        return _grade(runner, checking or _judge(problem.checker, cases), problem, cases)
    finally:
        runner.close()
        if checking is not None:
            checking.close()


def _grade(runner: Runner, judge: Judge, problem: Problem, cases: Cases) -> Verdict:
    of, passed, seconds, first = len(cases.inputs), 0, 0.0, None
    stop = problem.scoring == "all"
    for ran in runner.run(_given(cases), stop=stop):
        well = [one for one in ran if not one.kind]
        wrong = {one.number: why for one, why in zip(well, judge(well), strict=True) if why is not None}
        for one in ran:
            kind, why = ("wrong answer", wrong[one.number]) if one.number in wrong else (one.kind, one.why)
            seconds += one.seconds
            if not kind:
                passed += 1
                continue
            first = first or Failure(one.number, _kind(kind), why)
            if stop:
                return Verdict(passed, of, first)
        if seconds > problem.total_seconds and ran[-1].number + 1 < of:
            number = ran[-1].number + 1
            why = f"{number} cases took {seconds:.0f} s, of {problem.total_seconds:g} s for all of them"
            return Verdict(passed, of, first or Failure(number, "time limit", why))
    return Verdict(passed, of, first)


def _kind(kind: str) -> Kind:
    found: dict[str, Kind] = {
        "wrong answer": "wrong answer",
        "time limit": "time limit",
        "memory limit": "memory limit",
        "output limit": "output limit",
        "not run": "not run",
    }
    return found.get(kind, "runtime error")


def _given(cases: Cases) -> list[Given]:
    if cases.function is not None:
        return [Given(json.dumps(arguments).encode()) for arguments in cases.inputs]
    return [Given(text.encode()) for text in cases.inputs]


def _judge(spec: CheckerSpec, cases: Cases) -> Judge:
    if cases.function is not None:
        return lambda ran: [_wrong_value(one, cases, spec) for one in ran]
    checker = checker_of(spec.kind, spec.tolerance)

    def judge(ran: Sequence[Ran]) -> list[str | None]:
        return [
            None if checker(one.output, cases.outputs[one.number].encode()) else f"it printed {shown(one.output)}"
            for one in ran
        ]

    return judge


def _wrong_value(ran: Ran, cases: Cases, spec: CheckerSpec) -> str | None:
    expected = cases.outputs[ran.number]
    try:
        value = json.loads(ran.output)
        if same_value(value, expected, spec.kind, spec.tolerance):
            return None
        if cases.wrapped and same_value(value, expected[0], spec.kind, spec.tolerance):
            return None
    except (ValueError, RecursionError):
        return f"it returned nothing that can be read: {shown(ran.output)}"
    return f"it returned {shown(ran.output)}"


class _CheckerProgram:
    """The checker that is a Python program: `checker.py INPUT EXPECTED OUTPUT`, the paths of three files.

    It says yes by ending well, or, where the last word that it prints is a number, by one of 1 or more; no by the exit
    code 1 or 2, as testlib's do, or by a smaller number. When it does anything else it is asked about the expected
    output: if it can judge that, the solution's broke it and is wrong, else `EvalError` is raised.
    """

    def __init__(self, start: Callable[[], Sandbox], spec: CheckerSpec, cases: Cases) -> None:
        self._cases = cases
        self._runner = Runner(
            start,
            Program(
                source=spec.source.encode("utf-8", "replace"),
                language="python",
                time_limit_seconds=CHECKER_SECONDS,
                memory_limit_bytes=CHECKER_MEMORY,
                output_limit_bytes=OUTPUT_BYTES,
                arguments=("input", "expected", "output"),
                crash_code=CHECKER_CRASHED,
            ),
        )

    def __call__(self, ran: Sequence[Ran]) -> list[str | None]:
        given = [self._given(one.number, one.output) for one in ran]
        checks = [one for part in self._runner.run(given, stop=False) for one in part]
        said = [self._said(check, one.number) for check, one in zip(checks, ran, strict=True)]
        return [
            None if why is None else f"{why}; it printed {shown(one.output)}"
            for one, why in zip(ran, said, strict=True)
        ]

    def close(self) -> None:
        self._runner.close()

    def _given(self, number: int, output: bytes) -> Given:
        files = (self._cases.inputs[number].encode(), self._cases.outputs[number].encode(), output)
        return Given(b"", tuple(zip(("input", "expected", "output"), files, strict=True)))

    def _said(self, check: Ran, number: int) -> str | None:
        if _failed(check):
            expected = self._given(number, self._cases.outputs[number].encode())
            [again] = [one for part in self._runner.run([expected], stop=False) for one in part]
            if _failed(again):
                raise EvalError(f"the checker failed: {check.kind}: {check.why}")
            return f"the checker cannot read it: {check.kind}: {check.why[-WHY_BYTES:]}"
        words = check.output.split()
        try:
            says_yes = float(words[-1]) >= 1 if words else True
        except ValueError:
            says_yes = True
        return None if says_yes and not check.kind else f"the checker says no: {shown(check.output) or check.why}"


def _failed(check: Ran) -> bool:
    return bool(check.kind) and (check.kind != "runtime error" or check.exit_code not in (1, 2))


def shown(data: bytes) -> str:
    """The beginning of an output, for people."""
    return repr(data[:WHY_BYTES].decode("utf-8", "replace")) + ("..." if len(data) > WHY_BYTES else "")
