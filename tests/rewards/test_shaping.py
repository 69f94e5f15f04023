"""What is taken off a reward: exact at the corners, never more than was said, nothing where nothing was asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_celery.errors import LengthUnknown
from prorl_celery.jobs.models import Overlong, Repetition, RewardShaping
from prorl_celery.jobs.turns import Turn, ids_array, logprobs_array
from prorl_celery.rewards.shaping import length_of, overlong, pieces_of, repeated_share, shape

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
lengths = st.integers(0, 100_000)
limits = st.integers(1, 50_000).flatmap(
    lambda most: st.builds(
        lambda buffer, penalty: Overlong(max_tokens=most, buffer_tokens=buffer, penalty=penalty),
        st.integers(0, most),
        st.floats(0.0, 1e6),
    )
)
tokens = st.lists(st.integers(0, 3), max_size=40)


def a_turn(index: int, ids: Sequence[int] = (), *, text: str = "", count: int = 0, **fields: Any) -> Turn:
    return Turn(
        index=index,
        sampled_ids=ids_array(ids),
        logprobs=logprobs_array([0.0] * len(ids)),
        versions=ids_array([0] * len(ids)),
        completion_tokens=count or len(ids),
        messages=[{"role": "assistant", "content": text}, {"role": "tool", "content": "a b a b a b"}],
        **fields,
    )


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0.0), (12_288, 0.0), (12_289, -1 / 4096), (14_336, -0.5), (16_384, -1.0), (16_385, -1.0), (10**9, -1.0)],
)
def test_the_numbers_of_the_paper_come_out(length: int, expected: float) -> None:
    assert overlong(length, Overlong(max_tokens=16_384, buffer_tokens=4096, penalty=1.0)) == expected


def test_a_buffer_of_nothing_is_a_step_behind_the_limit() -> None:
    step = Overlong(max_tokens=10, buffer_tokens=0, penalty=2.0)
    assert [overlong(length, step) for length in (9, 10, 11)] == [0.0, 0.0, -2.0]


@FEW
@given(limits, lengths, lengths)
def test_longer_is_never_better_and_the_penalty_is_the_most(limit: Overlong, one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert -limit.penalty <= overlong(long, limit) <= overlong(short, limit) <= 0.0
    assert overlong(limit.max_tokens - limit.buffer_tokens, limit) == 0.0
    assert overlong(limit.max_tokens + 1, limit) == -limit.penalty
    if limit.buffer_tokens:
        assert overlong(limit.max_tokens, limit) == -limit.penalty


@FEW
@given(st.lists(tokens, max_size=5), st.integers(1, 12))
def test_the_share_is_one_less_distinct_over_all(pieces: list[list[int]], ngram: int) -> None:
    grams = [tuple(row[at : at + ngram]) for row in pieces for at in range(len(row) - ngram + 1)]
    expected = 1.0 - len(set(grams)) / len(grams) if grams else 0.0
    assert repeated_share(pieces, ngram) == expected
    assert 0.0 <= repeated_share(pieces, ngram) < 1.0


@FEW
@given(tokens, st.integers(1, 5))
def test_to_say_all_of_it_again_never_lowers_the_share(piece: list[int], ngram: int) -> None:
    assert repeated_share([piece, piece], ngram) >= repeated_share([piece], ngram)


@pytest.mark.parametrize("ngram", [1, 15, 16, 17, 31, 32, 33, 40, 64, 100])
def test_long_ngrams_are_compared_whole(ngram: int) -> None:
    ids = ids_array(range(200))
    again = ids_array([*ids[:ngram], 999, *ids])
    assert repeated_share([ids], ngram) == 0.0
    assert repeated_share([again], ngram) == pytest.approx(1 / (len(again) - ngram + 1))


def test_no_ngram_reaches_from_one_turn_into_the_next() -> None:
    assert repeated_share([[1, 2], [1, 2]], 2) == 0.5
    assert repeated_share([[1], [2], [1], [2]], 2) == 0.0


@FEW
@given(st.floats(-1e6, 1e6), st.lists(tokens, max_size=4), limits, st.integers(1, 4), st.floats(0.0, 10.0))
def test_the_reward_is_the_raw_one_and_its_parts(
    raw: float, pieces: list[list[int]], limit: Overlong, ngram: int, penalty: float
) -> None:
    turns = [a_turn(index, ids) for index, ids in enumerate(pieces)]
    both = shape(raw, turns, RewardShaping(overlong=limit, repetition=Repetition(ngram=ngram, penalty=penalty)))
    assert set(both.parts) == {"overlong", "repetition"}
    assert all(part <= 0.0 for part in both.parts.values())
    assert both.reward == raw + sum(both.parts.values())
    assert both.parts["repetition"] >= -penalty


@FEW
@given(st.floats(-1e6, 1e6), st.lists(tokens, max_size=4))
def test_what_is_within_the_limits_is_left_as_it_was(raw: float, pieces: list[list[int]]) -> None:
    turns = [a_turn(index, ids) for index, ids in enumerate(pieces)]
    mild = RewardShaping(
        overlong=Overlong(max_tokens=1000, buffer_tokens=100), repetition=Repetition(ngram=100, penalty=1.0)
    )
    assert shape(raw, turns, mild).reward == raw
    assert shape(raw, turns, mild).parts == {"overlong": 0.0, "repetition": 0.0}


def test_length_is_what_was_sampled_in_all_turns_together() -> None:
    turns = [a_turn(0, [1, 2, 3], delta_ids=ids_array(range(1000)), prompt_tokens=1000), a_turn(1, [4, 5])]
    assert length_of(turns) == 5


def test_without_ids_the_backends_count_is_the_length_and_words_are_compared() -> None:
    turns = [a_turn(0, text="to be or not to be", count=8), a_turn(1, text="to be", count=3)]
    assert length_of(turns) == 11
    assert pieces_of(turns) == [["to", "be", "or", "not", "to", "be"], ["to", "be"]]
    assert repeated_share(pieces_of(turns), 2) == pytest.approx(2 / 6)


def test_words_are_those_of_the_reply_its_thinking_and_its_calls_and_not_the_prompts() -> None:
    prompt = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "an example"}]
    call = {"function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    reply = {"role": "assistant", "content": None, "reasoning_content": "let me look", "tool_calls": [call]}
    turn = Turn(index=0, messages=[*prompt, reply, {"role": "tool", "content": "files"}], completion_tokens=9)
    assert pieces_of([turn]) == [["let", "me", "look", "bash", '{"command":', '"ls"}']]


def test_one_turn_without_ids_has_all_compared_as_words() -> None:
    assert pieces_of([a_turn(0, [1, 2], text="one two"), a_turn(1, text="three", count=2)]) == [
        ["one", "two"],
        ["three"],
    ]


def test_a_length_that_nobody_told_is_an_error_and_not_a_short_one() -> None:
    with pytest.raises(LengthUnknown, match="turn 1"):
        length_of([a_turn(0, [1]), a_turn(1, text="words, and no count")])


def test_a_count_below_nothing_makes_nothing_shorter() -> None:
    assert length_of([a_turn(0, [1, 2]), a_turn(1, count=-100)]) == 2


def test_no_turns_are_no_length_and_no_repetition() -> None:
    both = RewardShaping(overlong=Overlong(max_tokens=1, buffer_tokens=1), repetition=Repetition(ngram=1, penalty=1.0))
    assert shape(0.5, [], both).reward == 0.5
