"""What an eval may say a rollout is worth: a finite number; all else is a failure of its kind, and never a zero."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prorl_celery.errors import EvalError
from tasks.eval import _scored


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 10**400, True, "1", None])
def test_a_reward_that_is_no_finite_number_is_a_failure(reward: Any) -> None:
    with pytest.raises(EvalError, match="finite number") as failed:
        _scored({"reward": reward})
    assert failed.value.kind == "eval"


def test_a_finite_reward_is_taken_as_it_is() -> None:
    assert _scored({"reward": 3, "resolved": False}) == (3.0, False)
