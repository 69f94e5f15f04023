from collections.abc import Callable
from dataclasses import replace

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis_fixtures import claim, snapshot, submit, to_rollout

from prorl_celery.errors import TooLarge
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.results import segments
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turnlog import pack_turn, unpack_turns
from prorl_celery.jobs.turns import Observation, Turn, ids_array, logprobs_array

int32 = st.integers(-(2**31), 2**31 - 1)
float32 = st.floats(width=32, allow_nan=False)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    count = draw(st.integers(0, 50))
    same = draw(st.booleans())
    versions = [draw(int32)] * count if same else draw(st.lists(int32, min_size=count, max_size=count))
    return Turn(
        index=draw(st.integers(0, 1000)),
        delta_ids=ids_array(draw(st.lists(int32, max_size=50))),
        sampled_ids=ids_array(draw(st.lists(int32, min_size=count, max_size=count))),
        logprobs=logprobs_array(draw(st.lists(float32, min_size=count, max_size=count))),
        versions=ids_array(versions),
        new_segment=draw(st.booleans()),
        split_reason=draw(st.none() | st.text()),
        messages=draw(
            st.lists(st.dictionaries(st.text(), st.text() | st.none() | st.integers(), max_size=3), max_size=3)
        ),
        llm_s=draw(st.floats(0, 1e6)),
        backend=draw(st.none() | st.text()),
        policy_version=draw(st.none() | st.integers(0, 2**40)),
        run=draw(st.integers(0, 3)),
        closed=draw(st.booleans()),
        outcome=draw(st.none() | st.just({"finish_reason": "stop", "answer": None})),
        model=draw(st.none() | st.text()),
        mode=draw(st.sampled_from([None, "tokens", "chat"])),
        given=draw(st.none() | st.just({"content": "x", "reasoning": None, "calls": [["a", "bash", "{}"]]})),
    )


@settings(deadline=None, max_examples=50)
@given(turns())
def test_a_turn_comes_back_as_it_was(turn: Turn) -> None:
    assert unpack_turns([pack_turn(turn, limit_bytes=1 << 20, job_id="a")]) == [turn]


def test_a_turn_whose_arrays_differ_in_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 sampled ids, 0 log-probabilities, 0 versions"):
        pack_turn(Turn(index=0, sampled_ids=ids_array([1, 2])), limit_bytes=1000, job_id="a")


CONVERSATION = [
    Turn(
        index=0,
        delta_ids=ids_array([1, 2, 3]),
        sampled_ids=ids_array([10, 11]),
        logprobs=logprobs_array([-0.1, -0.2]),
        versions=ids_array([3, 3]),
        new_segment=True,
        messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": []}],
        llm_s=1.5,
        prompt_tokens=3,
        completion_tokens=2,
        cached_tokens=1,
        malformed_calls=1,
        backend="http://b",
        policy_version=3,
    ),
    Turn(
        index=1,
        delta_ids=ids_array([4, 5]),
        sampled_ids=ids_array([12]),
        logprobs=logprobs_array([-0.3]),
        versions=ids_array([4]),
        messages=[{"role": "tool", "content": "out"}, {"role": "assistant", "content": "a"}],
        finish_reason="length",
    ),
    Turn(
        index=2,
        delta_ids=ids_array([7, 8]),
        sampled_ids=ids_array([13, 14]),
        logprobs=logprobs_array([-0.5, 0.0]),
        versions=ids_array([4, 5]),
        new_segment=True,
        split_reason="the template rewrote the past",
    ),
]


def test_a_result_is_the_turn_log_byte_for_byte(store: JobStore) -> None:
    rollout = to_rollout(store)
    for turn in CONVERSATION:
        store.append_turn(rollout, turn)
    assert store.turns("a") == CONVERSATION
    evaluation = claim(store, store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=0))
    assert store.turns("a") == CONVERSATION
    store.finish(evaluation, state="completed", finish_reason="stop", reward=1.0, worked_s=0)
    result = store.result("a")
    exact = logprobs_array([-0.1, -0.2, -0.3])
    first, second = result.segments
    assert first.model_dump() == {
        "prompt_ids": [1, 2, 3],
        "response_ids": [10, 11, 4, 5, 12],
        "loss_mask": [1, 1, 0, 0, 1],
        "logprobs": [exact[0], exact[1], 0.0, 0.0, exact[2]],
        "policy_versions": [3, 3, -1, -1, 4],
        "split_reason": None,
    }
    assert second.model_dump() == {
        "prompt_ids": [7, 8],
        "response_ids": [13, 14],
        "loss_mask": [1, 1],
        "logprobs": [-0.5, 0.0],
        "policy_versions": [4, 5],
        "split_reason": "the template rewrote the past",
    }
    assert [m["role"] for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert [(t.finish_reason, t.prompt_tokens, t.backend) for t in result.turns] == [
        ("stop", 3, "http://b"),
        ("length", 0, None),
        ("stop", 0, None),
    ]
    assert store.result("a", tokens=False).segments == []
    assert type(result).model_validate_json(result.model_dump_json()) == result


@settings(deadline=None, max_examples=30)
@given(st.lists(turns(), max_size=6))
def test_every_token_of_the_log_is_in_the_rows_once_and_lists_have_one_length(log: list[Turn]) -> None:
    rows = segments(log)
    for row in rows:
        lengths = {len(row.response_ids), len(row.loss_mask), len(row.logprobs), len(row.policy_versions)}
        assert len(lengths) == 1
    flat = [token for row in rows for token in (*row.prompt_ids, *row.response_ids)]
    assert flat == [token for turn in log for token in (*turn.delta_ids, *turn.sampled_ids)]
    masked = [i for row in rows for i, m in zip(row.response_ids, row.loss_mask, strict=True) if m]
    assert masked == [token for turn in log for token in turn.sampled_ids]


def test_a_conversation_without_ids_has_messages_and_no_rows(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "user", "content": "q"}]))
    store.finish(rollout, state="cancelled", finish_reason="cancelled", worked_s=0)
    result = store.result("a")
    assert result.segments == []
    assert len(result.messages) == 1


def test_a_turn_sent_twice_is_logged_once(store: JobStore, either_client: redis.Redis) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, CONVERSATION[0])
    store.append_turn(rollout, CONVERSATION[1])
    before = snapshot(either_client)
    store.append_turn(rollout, CONVERSATION[0])
    store.append_turn(rollout, CONVERSATION[1])
    assert snapshot(either_client) == before
    assert store.status("a").turns == 2


@pytest.mark.parametrize("calls", [1, 2])
def test_that_a_run_ended_behind_its_last_call_can_be_noted_once(store: JobStore, calls: int) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "assistant"}], closed=False))
    for call in range(calls):
        said = [{"role": "tool", "content": str(call)}]
        seen = Observation(index=0, call=call, messages=said, tool_s=1.0, total_s=call + 2.0, closes=call + 1 == calls)
        store.append_observation(rollout, seen)
    outcome = {"finish_reason": "context_overflow", "answer": "7"}
    (before,), events = store.turns("a"), store.events("a")
    for _ in range(2):
        end = Observation(index=0, call=calls, total_s=before.total_s, closes=True, outcome=outcome)
        store.append_observation(rollout, end)
        assert store.turns("a") == [replace(before, outcome=outcome)]
    assert store.events("a") == events
    with pytest.raises(ValueError, match="after the turn's last call"):
        store.append_observation(rollout, replace(seen, call=calls + 1))


def test_a_turn_beyond_the_end_is_refused(store: JobStore) -> None:
    with pytest.raises(ValueError, match="turn 1 of a comes before"):
        store.append_turn(to_rollout(store), CONVERSATION[1])


def test_a_new_claim_of_rollout_begins_its_own_log(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, CONVERSATION[0])
    store.append_turn(rollout, CONVERSATION[1])
    message = store.restart(rollout, worked_s=0)
    assert message is not None
    assert store.turns("a") == []
    init = claim(store, message)
    again = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0))
    store.append_turn(again, CONVERSATION[0])
    assert store.turns("a") == CONVERSATION[:1]


def test_a_log_over_the_limit_is_refused_and_unchanged(make_store: Callable[..., JobStore]) -> None:
    store = make_store(max_blob_bytes=2048)
    rollout = to_rollout(store)
    noise = "".join(chr(0x4E00 + (i * 7919) % 20000) for i in range(450))
    with pytest.raises(TooLarge, match="turn 0 is"):
        store.append_turn(rollout, Turn(index=0, messages=[{"role": "user", "content": noise * 3}]))
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "user", "content": noise}]))
    with pytest.raises(TooLarge, match="the log with turn 1"):
        store.append_turn(rollout, Turn(index=1, messages=[{"role": "user", "content": noise}]))
    assert len(store.turns("a")) == 1


def test_a_job_that_ends_before_its_rollout_has_no_turns(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, CONVERSATION[0])
    broken = JobError(kind="sandbox", stage="rollout", message="m", retryable=True)
    assert store.fail(rollout, broken, worked_s=0)
    store.cancel("a")
    assert store.result("a").messages == []
    assert store.turns("nobody") == []
    assert submit(store, "b").fence == 0
