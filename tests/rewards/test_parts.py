"""Named parts of a reward: finite numbers, names that can be read, not too many."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prorl_celery.errors import EvalError
from prorl_celery.rewards.parts import MOST_PARTS, checked_parts


def test_parts_are_kept_as_floats() -> None:
    assert checked_parts({"reward_parts": {"format": 1, "tests": 0.25}}) == {"format": 1.0, "tests": 0.25}
    assert checked_parts({}) == checked_parts({"reward_parts": None}) == {}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([1.0], "an object of numbers, not list"),
        ({"a": math.nan}, "'a' must be a finite number"),
        ({"a": math.inf}, "'a' must be a finite number"),
        ({"a": True}, "'a' must be a finite number"),
        ({"a": "1"}, "'a' must be a finite number"),
        ({"a": None}, "'a' must be a finite number"),
        ({"a": 10**400}, "'a' must be a finite number"),
        ({"": 1.0}, "'' is no name"),
        ({"x" * 65: 1.0}, "is no name"),
        ({"a\n": 1.0}, "is no name"),
        ({"overlong": 1.0}, "'overlong' is what the reward shaping calls its own part"),
        ({str(n): 1.0 for n in range(MOST_PARTS + 1)}, "reward_parts are 65, 64 allowed"),
    ],
)
def test_what_is_no_part_is_named(parts: Any, says: str) -> None:
    with pytest.raises(EvalError, match=says):
        checked_parts({"reward_parts": parts})
