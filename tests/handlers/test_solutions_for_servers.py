"""What each task kind of ours gives a reward server: the solution, and what it is to be scored by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prorl_celery.handlers.base import Handler
from prorl_celery.handlers.code import CodeHandler
from prorl_celery.handlers.math import MathHandler
from prorl_celery.handlers.reasoning_gym import ReasoningGymHandler
from prorl_celery.handlers.stem import StemHandler
from prorl_celery.handlers.swe import SweHandler

CASES = {"inputs": ["1"], "outputs": ["2"]}
CODE = {"prompt": "Print it twice."}
SWE = {"instance_id": "x-1", "FAIL_TO_PASS": '["t"]', "PASS_TO_PASS": []}


def solution(handler: Handler, rollout: Any, *said: str) -> str:
    turns = [SimpleNamespace(messages=[{"role": "assistant", "content": text}]) for text in said]
    ctx: Any = SimpleNamespace(rollout=rollout, turns=lambda: turns)
    return handler.solution(ctx)


def test_of_code_it_is_the_program_whatever_was_said() -> None:
    assert solution(CodeHandler(), {"solution": "print(1)\n", "artifacts": {}}, "Done.") == "print(1)\n"
    assert solution(CodeHandler(), {"solution": None, "why": "no such file"}, "Done.") == ""


def test_of_a_repository_it_is_the_patch_whatever_was_said() -> None:
    assert solution(SweHandler(), {"patch": "diff --git a/x b/x\n"}, "Fixed.") == "diff --git a/x b/x\n"
    assert solution(SweHandler(), {"patch": "", "why": None}, "Fixed.") == ""
    assert solution(SweHandler(), {"patch": None, "why": "it is too long"}, "Fixed.") == ""


@pytest.mark.parametrize("handler", [MathHandler(), StemHandler(), ReasoningGymHandler()])
def test_of_the_others_it_is_the_answer_else_the_last_thing_said(handler: Handler) -> None:
    assert solution(handler, {"answer": "7"}, "It is 8.") == "7"
    assert solution(handler, {"answer": None}, "It is 8.", "No: 7.") == "No: 7."


@pytest.mark.parametrize(
    ("instance", "truth"),
    [
        ({"tests": [{"input": "1", "output": "2"}]}, [{"input": "1", "output": "2"}]),
        ({"input_output": '{"inputs": ["1"], "outputs": ["2"]}', "test": None}, '{"inputs": ["1"], "outputs": ["2"]}'),
        ({"ground_truth": CASES, "tests": [{"input": "3", "output": "4"}]}, CASES),
        (
            {"public_tests": CASES, "private_tests": CASES, "generated_tests": {}},
            {"public_tests": CASES, "private_tests": CASES},
        ),
        ({"private_tests": CASES}, {"private_tests": CASES}),
        (
            {"test": "def check(f): assert f(1)", "entry_point": "f", "canonical_solution": "hidden"},
            {"test": "def check(f): assert f(1)", "entry_point": "f"},
        ),
        (
            {"test_list": ["assert f(1)"], "test_imports": ["import math"], "test_setup_code": ""},
            {"test_list": ["assert f(1)"], "test_imports": ["import math"]},
        ),
    ],
)
def test_a_program_is_scored_by_its_tests_as_the_instance_has_them(instance: dict[str, Any], truth: Any) -> None:
    handler, whole = CodeHandler(), {**CODE, **instance}
    handler.validate(whole)
    assert handler.ground_truth(whole) == truth


def test_a_patch_is_scored_by_its_tests_and_the_fix_is_not_told() -> None:
    bench = {**SWE, "repo": "a/b", "base_commit": "c" * 40, "test_patch": "diff", "patch": "the fix", "version": None}
    assert SweHandler().ground_truth(bench) == {**SWE, "repo": "a/b", "base_commit": "c" * 40, "test_patch": "diff"}
    pypi = {
        **SWE,
        "package": "p",
        "base_version": "1",
        "test_file": "t.py",
        "test_source": "x",
        "test_command": "pytest",
    }
    assert SweHandler().ground_truth({**pypi, "fixed_version": "2", "limits": {}}) == pypi
    r2e = {"docker_image": "i", "expected_output_json": '{"t": "PASSED"}'}
    assert SweHandler().ground_truth({**r2e, "problem_statement": "x"}) == r2e


def test_a_question_is_scored_by_its_answer() -> None:
    assert MathHandler().ground_truth({"problem": "1+1", "answer": "2"}) == "2"
    assert StemHandler().ground_truth({"problem": "g?", "answer": 9.81, "unit": "m/s^2"}) == 9.81
    assert ReasoningGymHandler().ground_truth({"question": "?", "answer": None, "metadata": {}}) is None
