"""Rows of the usual mathematical data sets, as they are published, become instances of the `math` handler."""

from __future__ import annotations

from typing import Any

import pytest

from prorl_celery.data.math_columns import math_instance
from prorl_celery.errors import BadInstance
from prorl_celery.handlers.math import MathHandler

ROWS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "plain": ({"problem": "1+1?", "answer": "2"}, "1+1?", "2"),
    "a number": ({"problem": "1+1?", "answer": 2}, "1+1?", 2),
    "GSM8K": ({"question": "How many?", "answer": "3 * 14 = <<3*14=42>>42\n#### 42"}, "How many?", "42"),
    "GSM8K with thousands": ({"question": "How many?", "answer": "So\n#### 1,000"}, "How many?", "1,000"),
    "MATH": ({"problem": "P", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 5"}, "P", r"\frac{1}{2}"),
    "MATH, the last box": ({"problem": "P", "solution": r"\boxed{1}, no: \boxed{2}"}, "P", "2"),
    "MATH-500": ({"problem": "P", "solution": "long " * 99, "answer": r"\pi", "unique_id": "test/1.json"}, "P", r"\pi"),
    "a box without braces": ({"problem": "P", "solution": r"It is $\boxed 7$."}, "P", "7"),
    "DAPO-Math": (
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "P"}],
            "reward_model": {"ground_truth": "34", "style": "rule"},
        },
        "P",
        "34",
    ),
    "DAPO-Math, its list as text": ({"prompt": "P", "reward_model": {"ground_truth": '["34"]'}}, "P", "34"),
    "reward_model as text": ({"prompt": "P", "reward_model": '{"ground_truth": "5"}'}, "P", "5"),
    "AIME": ({"ID": "2024-I-1", "Problem": "P", "Solution": "long " * 99, "Answer": 204}, "P", 204),
    "final_answer": ({"question": "P", "final_answer": ["7"], "other": None}, "P", "7"),
    "an empty column is none": ({"problem": "", "question": "P", "answer": None, "ground_truth": "7"}, "P", "7"),
    "a short solution": ({"problem": "P", "solution": "7"}, "P", "7"),
    "nought": ({"problem": "P", "answer": 0}, "P", 0),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_an_instance(name: str) -> None:
    row, problem, answer = ROWS[name]
    instance = math_instance(row)
    assert (instance["data_source"], instance["problem"], instance["answer"]) == ("math", problem, answer)
    MathHandler().validate(instance)


def test_a_row_keeps_its_name() -> None:
    assert math_instance(ROWS["AIME"][0])["instance_id"] == "2024-I-1"
    assert math_instance(ROWS["MATH-500"][0])["instance_id"] == "test/1.json"
    assert "instance_id" not in math_instance(ROWS["plain"][0])


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"answer": "2"}, "problem"),
        ({"problem": "P"}, "answer"),
        ({"problem": 7, "answer": "2"}, "problem"),
        ({"prompt": [{"role": "assistant", "content": "P"}], "answer": "2"}, "prompt"),
        ({"problem": "P", "answer": ["1", "2"]}, "answer"),
        ({"problem": "P", "answer": True}, "answer"),
        ({"problem": "P", "answer": "so\n#### "}, "answer"),
        ({"problem": "P", "reward_model": {"style": "rule"}}, "reward_model.ground_truth"),
        ({"problem": "P", "reward_model": "{"}, "reward_model"),
        ({"problem": "P", "solution": "long " * 99}, "solution"),
        ({"problem": "P", "solution": r"\boxed{1"}, "solution"),
    ],
)
def test_a_bad_row_names_its_column(row: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInstance) as refused:
        math_instance(row)
    assert refused.value.field == field
