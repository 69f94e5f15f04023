"""Whatever a reward server answers is a finite score or a refusal."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_celery.errors import RewardRefused
from prorl_celery.rewards.answer import read_score

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["score", "reward", "scores", "rewards", "x"]), inner, max_size=3)
    ),
)


@FEW
@given(st.binary(max_size=50) | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_score_or_refused(data: bytes) -> None:
    try:
        found = read_score(data, "it")
    except RewardRefused:
        return
    assert isinstance(found.score, float)
    assert math.isfinite(found.score)
    json.dumps(found.said, allow_nan=False).encode()


@FEW
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53))
def test_every_finite_number_comes_back_as_it_was_sent(number: float) -> None:
    for form in (number, [number], {"score": number}, {"scores": [number]}, [{"reward": number}]):
        assert read_score(json.dumps(form).encode(), "it").score == number


def test_a_score_and_a_list_of_scores_are_not_mixed_up() -> None:
    with pytest.raises(RewardRefused):
        read_score(b'{"score": null, "scores": [1.0]}', "it")


def test_what_nests_deeper_than_a_result_may_is_refused() -> None:
    def answer(levels: int) -> bytes:
        return b'{"score": 1, "why": ' + b"[" * levels + b"]" * levels + b"}"

    assert read_score(answer(90), "it").score == 1.0
    with pytest.raises(RewardRefused, match="cannot be kept as JSON"):
        read_score(answer(300), "it")
