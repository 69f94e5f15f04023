"""A turn logged in parts: the reply before its tools run, then what each call gave as it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis_fixtures import claim, snapshot, submit, to_rollout

from prorl_celery.errors import FenceLost, TooLarge
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turnlog import pack_observation, pack_turn, unpack_turns
from prorl_celery.jobs.turns import Observation, Turn, ids_array, logprobs_array
from prorl_celery.store.blobs import pack

ASKED = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}, {"id": "2"}]}
REPLY = Turn(
    index=0,
    delta_ids=ids_array([1, 2]),
    sampled_ids=ids_array([3]),
    logprobs=logprobs_array([-0.5]),
    versions=ids_array([7]),
    new_segment=True,
    messages=[{"role": "user", "content": "q"}, ASKED],
    llm_s=2.0,
    total_s=2.0,
    closed=False,
)


def told(call: int, *, closes: bool = False, outcome: dict[str, object] | None = None) -> Observation:
    """What one call of the reply gave."""
    message = {"role": "tool", "tool_call_id": str(call + 1), "content": f"out {call}"}
    return Observation(
        index=0, call=call, messages=[message], tool_s=1.5, total_s=4.0 + call, closes=closes, outcome=outcome
    )


def test_a_turn_grows_with_each_call_and_is_closed_by_the_last(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, REPLY)
    (turn,) = store.turns("a")
    assert turn == REPLY
    store.append_observation(rollout, told(0))
    (turn,) = store.turns("a")
    assert (turn.closed, turn.tool_s, turn.total_s) == (False, 1.5, 4.0)
    assert [m["role"] for m in turn.messages] == ["user", "assistant", "tool"]
    store.append_observation(rollout, told(1, closes=True, outcome={"finish_reason": "finish", "answer": "42"}))
    (turn,) = store.turns("a")
    assert (turn.closed, turn.tool_s, turn.total_s) == (True, 3.0, 5.0)
    assert [m.get("content") for m in turn.messages] == ["q", None, "out 0", "out 1"]
    assert turn.outcome == {"finish_reason": "finish", "answer": "42"}
    assert (turn.sampled_ids, turn.logprobs, turn.versions) == (REPLY.sampled_ids, REPLY.logprobs, REPLY.versions)
    assert store.status("a").turns == 1


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.dictionaries(st.text(), st.text(), max_size=2) | st.none()),
        max_size=5,
    )
)
def test_what_the_parts_of_a_log_say_is_in_its_turns_once_and_in_order(
    shape: list[tuple[int, bool, dict[str, str] | None]],
) -> None:
    blobs, expected = [], []
    for index, (calls, closes, outcome) in enumerate(shape):
        words = [f"{index}"] + [f"{index}.{call}" for call in range(calls)]
        turn = Turn(index=index, run=index // 2, closed=calls == 0, messages=[{"content": words[0]}])
        blobs.append(pack_turn(turn, limit_bytes=1 << 16, job_id="a"))
        for call in range(calls):
            last = call == calls - 1 and closes
            seen = Observation(
                index=index, call=call, messages=[{"content": words[call + 1]}], closes=last,
                outcome=outcome if last else None,
            )  # fmt: skip
            blobs.append(pack_observation(seen, limit_bytes=1 << 16, job_id="a"))
        expected.append((index, index // 2, calls == 0 or closes, outcome if calls and closes else None, words))
    turns = unpack_turns(blobs)
    assert [(t.index, t.run, t.closed, t.outcome, [m["content"] for m in t.messages]) for t in turns] == expected


def test_a_log_of_before_turns_had_parts_is_still_read() -> None:
    values = (0, ids_array([1]), ids_array([2]), logprobs_array([-1.0]), 5, True, None, [{"role": "user"}])
    values += (1.0, 2.0, 3.0, 1, 1, "http://b", 5, "length", None, 2)
    (turn,) = unpack_turns([pack(values, limit_bytes=1000, what="turn 0")])
    assert (turn.run, turn.closed, turn.outcome) == (0, True, None)
    assert (turn.versions, turn.finish_reason, turn.malformed_calls) == (ids_array([5]), "length", 2)


def test_the_same_part_again_changes_nothing(store: JobStore, either_client: redis.Redis) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, REPLY)
    store.append_observation(rollout, told(0))
    before = snapshot(either_client)
    store.append_turn(rollout, REPLY)
    store.append_observation(rollout, told(0))
    assert snapshot(either_client) == before
    store.append_observation(rollout, told(1, closes=True))
    store.append_turn(rollout, Turn(index=1))
    before = snapshot(either_client)
    store.append_observation(rollout, told(1, closes=True))
    store.append_turn(rollout, REPLY)
    assert snapshot(either_client) == before


@pytest.mark.parametrize(
    ("seen", "complaint"),
    [
        (told(1), "call 1 of turn 0 of a comes before"),
        (Observation(index=1, call=0), "call 0 of turn 1 of a comes before"),
    ],
)
def test_a_part_that_comes_before_what_it_follows_is_refused(
    store: JobStore, seen: Observation, complaint: str
) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, REPLY)
    with pytest.raises(ValueError, match=complaint):
        store.append_observation(rollout, seen)
    assert store.turns("a") == [REPLY]


def test_a_call_behind_the_last_one_of_its_turn_is_refused(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, REPLY)
    store.append_observation(rollout, told(0, closes=True))
    with pytest.raises(ValueError, match="call 1 of turn 0 of a comes after the turn's last call"):
        store.append_observation(rollout, told(1))


def test_an_observation_without_a_turn_is_refused(store: JobStore) -> None:
    with pytest.raises(ValueError, match="comes before"):
        store.append_observation(to_rollout(store), told(0))


def test_an_observation_counts_for_the_limit_of_the_log(make_store: Callable[..., JobStore]) -> None:
    store = make_store(max_blob_bytes=2048)
    rollout = to_rollout(store)
    noise = "".join(chr(0x4E00 + (i * 7919) % 20000) for i in range(450))
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "user", "content": noise}], closed=False))
    with pytest.raises(TooLarge, match="the log with call 0 of turn 0"):
        store.append_observation(rollout, Observation(index=0, call=0, messages=[{"content": noise}]))
    with pytest.raises(TooLarge, match="the observation of call 0 of turn 0 is"):
        store.append_observation(rollout, Observation(index=0, call=0, messages=[{"content": noise * 3}]))
    store.append_observation(rollout, Observation(index=0, call=0, closes=True))
    assert len(store.turns("a")) == 1


def test_a_claim_that_is_gone_appends_no_observation(store: JobStore, either_client: redis.Redis) -> None:
    first = to_rollout(store)
    store.append_turn(first, REPLY)
    second = claim(store, store.hand_back(first, waited_s=0))
    before = snapshot(either_client)
    with pytest.raises(FenceLost, match="may not append"):
        store.append_observation(first, told(0))
    assert snapshot(either_client) == before
    store.append_observation(second, told(0))
    assert len(store.turns("a")[0].messages) == 3


def test_an_open_turn_is_gone_on_with_where_its_calls_stopped(store: JobStore) -> None:
    first = to_rollout(store)
    store.append_turn(first, REPLY)
    store.append_observation(first, told(0))
    second = claim(store, store.hand_back(first, waited_s=0))
    assert second.going_on
    (turn,) = store.turns("a")
    assert (turn.closed, len(turn.messages)) == (False, 3)
    store.append_observation(second, told(1, closes=True))
    store.append_turn(second, Turn(index=1, run=1))
    assert [(turn.run, turn.closed) for turn in store.turns("a")] == [(0, True), (1, True)]


def test_a_job_that_ends_in_an_open_turn_keeps_what_was_sampled(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, REPLY)
    store.append_observation(rollout, told(0))
    late = JobError(kind="timeout", stage="rollout", message="late", retryable=False)
    assert store.fail(rollout, late, worked_s=1) is None
    result = store.result("a")
    assert result.state == "timed_out"
    assert [m["role"] for m in result.messages] == ["user", "assistant", "tool"]
    (row,) = result.segments
    assert (row.prompt_ids, row.response_ids, row.loss_mask) == ([1, 2], [3], [1])
    assert result.turns[0].tool_s == 1.5


def test_a_turn_that_was_never_closed_does_not_stop_the_next(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, REPLY)
    store.append_turn(rollout, Turn(index=1, run=1))
    assert [turn.closed for turn in store.turns("a")] == [False, True]
    assert submit(store, "b").fence == 0
