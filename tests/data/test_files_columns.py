"""Columns as fields: maps from files, the known ones, values that JSON does not have."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import pytest

from prorl_celery.data.columns import ColumnMap, load_map
from prorl_celery.data.columns_known import KNOWN
from prorl_celery.data.columns_plain import plain
from prorl_celery.errors import BadInstance, SettingsError
from prorl_celery.handlers.code import CodeHandler
from prorl_celery.handlers.math import MathHandler

VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "reward_model": {"ground_truth": "2", "style": "rule"},
    "tests": '[{"input": "1"}]',
}
MAP = """
data_source = "math"
optional = ["level"]
json = ["tests"]
[columns]
problem = "prompt.0.content"
answer = "reward_model.ground_truth"
tests = "tests"
level = "extra_info.level"
[constants]
judge = false
"""


def the_map(tmp_path: Path, text: str, name: str = "map.toml") -> ColumnMap:
    (tmp_path / name).write_text(text)
    return load_map(tmp_path / name)


def test_a_map_leads_into_objects_and_lists_and_says_what_is_constant(tmp_path: Path) -> None:
    assert the_map(tmp_path, MAP)(VERL) == {
        "data_source": "math",
        "problem": "1+1?",
        "answer": "2",
        "tests": [{"input": "1"}],
        "judge": False,
    }


def test_what_is_kept_keeps_its_name_but_for_what_is_renamed(tmp_path: Path) -> None:
    text = '{"keep": true, "data_source": "math", "columns": {"problem": "question"}}'
    found = the_map(tmp_path, text, "map.json")({"question": "1+1?", "answer": "2", "id": 7})
    assert found == {"problem": "1+1?", "answer": "2", "id": 7, "data_source": "math"}


def test_a_column_whose_name_has_a_dot_is_found_by_its_name(tmp_path: Path) -> None:
    text = 'data_source = "x"\n[columns]\na = "b.c"'
    assert the_map(tmp_path, text)({"b.c": 1, "b": {"c": 2}})["a"] == 1


@pytest.mark.parametrize("row", [{}, {"prompt": []}, {"prompt": [{}]}, {"prompt": None}, {"prompt": "text"}])
def test_a_row_without_the_column_is_refused_by_the_fields_name(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(BadInstance, match=r"no column 'prompt\.0\.content'") as bad:
        the_map(tmp_path, MAP)(row)
    assert bad.value.field == "problem"


def test_text_that_should_be_json_and_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInstance, match="not JSON") as bad:
        the_map(tmp_path, MAP)({**VERL, "tests": "[1"})
    assert bad.value.field == "tests"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data_source = ", "map.toml: "),
        ('data_source = "math"\ncolumn = 1', "column: Extra inputs"),
        ('data_source = "math"\n[columns]\na = 1', "columns.a: "),
        ('[columns]\na = "b"', "says no data_source"),
        ('data_source = "math"\noptional = ["b"]', "optional or json names b"),
    ],
)
def test_a_map_that_is_none_is_told(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        the_map(tmp_path, text)


GSM8K = {"question": "Two and two?", "answer": "2+2 = <<2+2=4>>4\n#### 4"}
MATH_500 = {"problem": "$1+1$?", "solution": "So $\\boxed{2}$.", "answer": "2", "unique_id": "test/algebra/1.json"}
DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "Solve: 1+1?"}],
    "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b"},
}


@pytest.mark.parametrize(
    ("name", "row", "answer", "instance_id"),
    [
        ("gsm8k", GSM8K, "4", None),
        ("math", MATH_500, "2", "test/algebra/1.json"),
        ("dapo-math", DAPO, "2", "dapo/9a9b"),
    ],
)
def test_rows_of_mathematical_sets_are_instances_of_math(
    name: str, row: dict[str, Any], answer: str, instance_id: str | None
) -> None:
    instance = KNOWN[name](row)
    MathHandler().validate(instance)
    assert (instance["data_source"], instance["answer"]) == ("math", answer)
    assert instance.get("instance_id") == instance_id


MBPP = {"task_id": 2, "text": "Write f.", "code": "gold", "test_list": ["assert f() == 1"], "test_setup_code": ""}
HUMAN_EVAL = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(f): ..."}
APPS = {
    "problem_id": 7,
    "question": "Add.",
    "solutions": '["gold"]',
    "input_output": '{"inputs": ["1 2\\n"], "outputs": ["3\\n"]}',
    "starter_code": "",
}


@pytest.mark.parametrize(
    ("name", "row", "instance_id"),
    [
        ("mbpp", MBPP, "mbpp/2"),
        ("human-eval", HUMAN_EVAL, "HumanEval/0"),
        ("apps", APPS, "apps/7"),
        ("taco", APPS, "apps/7"),
    ],
)
def test_rows_of_known_sets_are_instances_that_the_handler_takes(
    name: str, row: dict[str, Any], instance_id: str
) -> None:
    instance = KNOWN[name](row)
    CodeHandler().validate(instance)
    assert instance["data_source"] == "code"
    assert instance["instance_id"] == instance_id
    assert "gold" not in str(instance)


def test_a_row_of_swe_bench_loses_its_patch_and_its_lists_are_lists() -> None:
    row = {"instance_id": "a__b-1", "repo": "a/b", "patch": "gold", "FAIL_TO_PASS": '["t"]', "PASS_TO_PASS": []}
    assert KNOWN["swe-bench"](row) == {
        "data_source": "swe",
        "instance_id": "a__b-1",
        "repo": "a/b",
        "FAIL_TO_PASS": ["t"],
        "PASS_TO_PASS": [],
    }


@pytest.mark.parametrize("name", list(KNOWN))
def test_a_row_of_another_set_is_refused(name: str) -> None:
    with pytest.raises(BadInstance):
        KNOWN[name]({"unheard": "of"})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "nan, which JSON does not know"),
        (math.inf, "inf, which JSON does not know"),
        (b"x", "of type bytes"),
        (datetime.datetime(2024, 1, 1), "of type datetime"),
        (datetime.date(2024, 1, 1), "of type date"),
        (decimal.Decimal("1.5"), "of type Decimal"),
        ({1: "a"}, "a key that is no text: 1"),
        ("\ud800", "half a surrogate pair"),
    ],
)
def test_what_has_no_form_in_json_is_refused_by_its_place(value: Any, says: str) -> None:
    with pytest.raises(BadInstance, match=says) as bad:
        plain({"a": [0, {"b": value}]}, "")
    assert bad.value.field == "a.1.b"


def test_arrays_and_numbers_of_numpy_become_lists_and_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    value = {"a": numpy.array([[1, 2]]), "b": numpy.float32(0.5), "c": numpy.int64(3), "d": numpy.bool_(True)}
    assert plain(value, "") == {"a": [[1, 2]], "b": 0.5, "c": 3, "d": True}
    with pytest.raises(BadInstance):
        plain({"a": numpy.array([math.nan])}, "")
