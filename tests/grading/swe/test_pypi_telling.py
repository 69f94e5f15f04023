"""What is checked of an instance made of a release before its job is accepted, and what report lines are worth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prorl_celery.errors import BadInstance
from prorl_celery.grading.swe.inside.told import Told
from prorl_celery.grading.swe.pypi import PypiForm

INSTANCE: dict[str, Any] = {
    "problem_statement": "It is broken.", "test_file": "t.py", "test_source": "def test_a(): pass",
    "test_command": "pytest", "workspace": "a", "FAIL_TO_PASS": ["t.py::test_a"], "PASS_TO_PASS": [],
}  # fmt: skip
OPTIONAL = ("wheelhouse", "source_root", "image", "package", "base_version")


def test_what_an_instance_need_not_have_may_be_null() -> None:
    form, instance = PypiForm(), INSTANCE | dict.fromkeys(OPTIONAL)
    form.validate(instance)
    assert (form.image(instance), form.protected(instance)) == (None, ("t.py",))
    assert "None" not in form.prompt(instance)


@pytest.mark.parametrize("name", INSTANCE)
@pytest.mark.parametrize("value", [None, 7, 1.5, True, [], {}, "", " ", "\0", [None], ["a", 3]])
def test_a_field_that_is_something_else_is_refused_by_name(name: str, value: object) -> None:
    if name == "PASS_TO_PASS" and value == []:
        return
    with pytest.raises(BadInstance) as told:
        PypiForm().validate(INSTANCE | {name: value})
    assert told.value.field == name


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("value", [7, True, [], {}, "", "\0"])
def test_so_is_one_that_need_not_be_there(name: str, value: object) -> None:
    with pytest.raises(BadInstance) as told:
        PypiForm().validate(INSTANCE | {name: value})
    assert told.value.field == name


def lines(token: str) -> bytes:
    """A report that one test has passed."""
    told: list[dict[str, Any]] = [
        {"id": "a", "also": "a", "when": when, "outcome": "passed", "xfail": False}
        for when in ("setup", "call", "teardown")
    ]
    return b"".join(f"{token}{json.dumps(line)}\n".encode() for line in [*told, {"end": 0, "changed": []}])


def test_a_line_without_the_runs_token_tells_of_nothing_but_a_forger() -> None:
    told = Told("secret")
    told.hear(lines(""))
    told.hear(lines("guess"))
    assert told.outcomes() == {}
    assert (told.facts["ended"], told.facts["forged"]) == (False, 8)
    told.hear(lines("secret"))
    assert told.outcomes() == {"a": "passed"}
    assert told.facts["ended"]


def test_what_is_told_after_the_end_is_not_heard() -> None:
    told = Told("secret")
    told.hear(b'secret{"end": 1, "changed": []}\n' + lines("secret"))
    assert (told.outcomes(), told.facts["code"]) == ({}, 1)


@pytest.mark.parametrize(
    "line",
    ['{"id": "a"}', '{"id": 7, "also": [], "when": "call", "outcome": "passed", "xfail": 0}', "[]", "{", '{"end": 0}',
     "[" * 99999,
     '{"alien": 1, "uncollected": 2}', '{"uncollected": 1}', "\\xff", '{"end": 0, "changed": 7}'],
)  # fmt: skip
def test_a_line_that_no_runner_of_ours_wrote_is_a_forgers(line: str) -> None:
    told = Told("secret")
    told.hear(f"secret{line}\n".encode())
    json.dumps([told.facts, told.outcomes()])
    assert told.facts["forged"] == (0 if "alien" in line else 1)
    assert not told.facts["ended"]
