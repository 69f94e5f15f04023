"""What an instance of a programming problem may look like, and what it may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prorl_celery.errors import BadInstance
from prorl_celery.grading.code.forms import Asserts, Cases, Check
from prorl_celery.grading.code.grade import last_fence
from prorl_celery.grading.code.problem import problem_of

PROMPT = {"prompt": "Do it."}
PAIRS = [{"input": "1\n", "output": "2\n"}, {"input": "3\n", "output": "4\n"}]
COLUMNS = {"inputs": ["1\n", "3\n"], "outputs": ["2\n", "4\n"]}
CALLS = {"fn_name": "f", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}
TEXT_CALLS = [{"input": '[1, 2]\n"a"', "output": "true", "metadata": {"func_name": "f"}}]
READ = Cases(("1\n", "3\n"), ("2\n", "4\n"))


@pytest.mark.parametrize(
    ("fields", "tests"),
    [
        ({"tests": PAIRS}, READ),
        ({"tests": json.dumps(PAIRS)}, READ),
        ({"tests": COLUMNS}, READ),
        ({"input_output": json.dumps(COLUMNS)}, READ),
        ({"official_tests": PAIRS, "tests": None}, READ),
        ({"ground_truth": json.dumps(PAIRS)}, READ),
        (
            {
                "public_tests": {"input": ["1\n"], "output": ["2\n"]},
                "private_tests": {"input": ["3\n"], "output": ["4\n"]},
                "generated_tests": {"input": [], "output": []},
            },
            READ,
        ),
        ({"tests": {"inputs": [["1", "2"]], "outputs": [["3"]]}}, Cases(("1\n2\n",), ("3\n",))),
        ({"tests": CALLS}, Cases(([1, 2], [3, 4]), ([3], [7]), "f", True)),
        ({"input_output": json.dumps(CALLS)}, Cases(([1, 2], [3, 4]), ([3], [7]), "f", True)),
        ({"tests": TEXT_CALLS}, Cases(([[1, 2], "a"],), (True,), "f")),
        ({"test": "def check(c): ...", "entry_point": "f"}, Check("def check(c): ...", "f", "Do it.")),
        (
            {"test_list": ["assert math.isclose(f(1), 2)", "assert g(f(2)) == 3"], "test_imports": ["import math"]},
            Asserts(("assert math.isclose(f(1), 2)", "assert g(f(2)) == 3"), "\nimport math", ("f", "g")),
        ),
    ],
)
def test_tests_are_read_in_every_form_that_data_sets_have(fields: dict[str, Any], tests: object) -> None:
    assert problem_of({**PROMPT, **fields}).tests == tests


@pytest.mark.parametrize(
    ("fields", "seconds", "size"),
    [
        ({}, 4.0, 512 << 20),
        ({"time_limit": 2, "memory_limit": 256}, 2.0, 256 << 20),
        ({"time_limit": "2.5 seconds", "memory_limit": "64 megabytes"}, 2.5, 64 << 20),
        ({"time_limit": "500 ms", "memory_limit": "1 GB"}, 0.5, 1 << 30),
        ({"time_limit": {"seconds": 1, "nanos": 500_000_000}, "memory_limit_bytes": 32 << 20}, 1.5, 32 << 20),
    ],
)
def test_limits_are_read_with_their_units(fields: dict[str, Any], seconds: float, size: int) -> None:
    problem = problem_of({**PROMPT, "tests": PAIRS, **fields})
    assert (problem.time_limit_seconds, problem.memory_limit_bytes) == (seconds, size)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "tests"),
        ({"tests": []}, "tests"),
        ({"tests": "[{"}, "tests"),
        ({"tests": "words"}, "tests"),
        ({"tests": 7}, "tests"),
        ({"tests": [*PAIRS, {"input": "1"}]}, "tests.2"),
        ({"tests": [*PAIRS, {"input": 1, "output": "2"}]}, "tests.inputs.2"),
        ({"tests": [{"input": "\ud800", "output": "2"}]}, "tests.inputs.0"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "tests"),
        ({"tests": {"inputs": "1", "outputs": "2"}}, "tests"),
        ({"tests": {**CALLS, "fn_name": "no name"}}, "tests.fn_name"),
        ({"tests": {**CALLS, "inputs": [1, 2]}}, "tests.inputs.0"),
        ({"tests": {**CALLS, "inputs": ["[1", "2"]}}, "tests.inputs.0"),
        ({"test": "", "entry_point": "f"}, "test"),
        ({"test": "def check(c): ...", "entry_point": "a b"}, "entry_point"),
        ({"test": "def check(c): ..."}, "entry_point"),
        ({"test_list": []}, "test_list"),
        ({"test_list": ["assert ("]}, "test_list.0"),
        ({"test_list": ["assert True"]}, "test_list"),
        ({"test_list": ["assert f(1)"], "test_setup_code": "x = ("}, "test_setup_code"),
        ({"tests": PAIRS, "checker": "magic"}, "checker"),
        ({"tests": PAIRS, "checker": 7}, "checker"),
        ({"tests": PAIRS, "checker": {"kind": "float", "tolerance": -1}}, "checker.tolerance"),
        ({"tests": PAIRS, "checker": {"kind": "program"}}, "checker.source"),
        ({"tests": CALLS, "checker": {"kind": "program", "source": "x"}}, "checker"),
        ({"tests": PAIRS, "time_limit": 0}, "time_limit"),
        ({"tests": PAIRS, "time_limit": float("nan")}, "time_limit"),
        ({"tests": PAIRS, "time_limit": "soon"}, "time_limit"),
        ({"tests": PAIRS, "time_limit": True}, "time_limit"),
        ({"tests": PAIRS, "memory_limit": -1}, "memory_limit"),
        ({"tests": PAIRS, "memory_limit": 0.001}, "memory_limit"),
        ({"tests": PAIRS, "memory_limit_bytes": 10}, "memory_limit_bytes"),
        ({"tests": PAIRS, "total_time_limit": -3}, "total_time_limit"),
        ({"tests": PAIRS, "scoring": "some"}, "scoring"),
        ({"tests": PAIRS, "language": "cobol"}, "language"),
        ({"tests": CALLS, "language": "cpp"}, "language"),
        ({"tests": PAIRS, "prompt": ""}, "prompt"),
        ({"tests": PAIRS, "prompt": None}, "prompt"),
        ({"tests": PAIRS, "starter_code": 3}, "starter_code"),
    ],
)
def test_an_instance_that_cannot_be_run_is_refused_by_the_field_that_is_wrong(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInstance) as refused:
        problem_of({**PROMPT, **fields})
    assert refused.value.field == field


def test_ten_thousand_cases_are_no_bad_instance_and_a_million_are() -> None:
    cases = problem_of({**PROMPT, "tests": PAIRS * 5000}).tests
    assert isinstance(cases, Cases)
    assert len(cases.inputs) == 10_000
    with pytest.raises(BadInstance, match="too many"):
        problem_of({**PROMPT, "tests": PAIRS * 500_000})


@pytest.mark.parametrize("name", ["problem", "question", "description", "text"])
def test_the_prompt_may_have_other_names(name: str) -> None:
    assert problem_of({name: "Do that.", "tests": PAIRS}).prompt == "Do that."


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("First:\n```python\nx = 1\n```\nno:\n```Python\nx = 2\n```\nThere.", "x = 2\n"),
        ("```py\r\nx = 1\r\n```", "x = 1\r\n"),
        ("```text\nx = 1\n```", None),
        ("```python\nx = 1", None),
        ("x = 1", None),
    ],
)
def test_an_answers_solution_is_its_last_block_of_code(answer: str, found: str | None) -> None:
    assert last_fence(answer) == found
