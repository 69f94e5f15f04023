"""`docs/stem.md` says what is so: its instances are taken, its settings are there."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from prorl_celery.grading.stem.quantity import Key
from prorl_celery.handlers.stem import StemHandler
from prorl_celery.settings import Settings, variable_of

TEXT = (Path(__file__).parents[2] / "docs" / "stem.md").read_text()
INSTANCES = [line for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", INSTANCES, ids=range(len(INSTANCES)))
def test_its_instances_are_taken(line: str) -> None:
    StemHandler().validate(json.loads(line))


def test_its_settings_are_there() -> None:
    named = set(re.findall(r"PRORL_\w+", TEXT))
    assert named >= {"PRORL_JUDGE_MODEL", "PRORL_SEARCH_URL"}
    assert named <= {variable_of(field) for field in fields(Settings)}


@pytest.mark.parametrize(
    ("answer", "reply", "right"),
    [
        ("3.2 km", "3200 m", True),
        ("3.14", "3.135", True),
        ("3.14", "3.1459", False),
        ("25 degC", "298.15 K", True),
        ("25 degC", "77 degF", True),
        ("5 J/kg K", "5 J/(kg K)", True),
        ("1.5", "1,5", False),
    ],
)
def test_its_numbers_are_so(answer: str, reply: str, right: bool) -> None:
    assert Key.of({"answer": answer}).grade(reply).right is right
