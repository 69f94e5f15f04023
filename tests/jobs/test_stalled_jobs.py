"""A running job that does not move is reported with what it is at, until it moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis_fixtures import claim, snapshot, submit, to_rollout

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Observation, Turn

STALL = {"act": "model call http://a", "thread": "slot-3", "since_s": 301.25, "waiting": False}
BROKEN = JobError(kind="sandbox", stage="rollout", message="m", retryable=True)


def stalled(store: JobStore, job_id: str = "a") -> Claim:
    """A rollout in a turn with calls, that is stalled."""
    rollout = to_rollout(store, job_id)
    store.append_turn(rollout, Turn(index=0, closed=False))
    assert store.note_stall(job_id, rollout.fence, STALL)
    return rollout


def test_a_stalled_job_says_where_it_is_and_at_what_and_for_how_long(store: JobStore) -> None:
    stalled(store)
    found = store.status("a").stalled
    assert found is not None
    assert (found.stage, found.node, found.process) == ("rollout", "n1", "p1")
    assert (found.thread, found.act) == ("slot-3", "model call http://a")
    assert 301.0 <= found.seconds < 400.0
    assert store.stalled() == ["a"]
    assert store.counters()["stalled"] == 1
    assert [status.stalled is not None for status in store.statuses(["a"])] == [True]
    assert [status.stalled is not None for status in store.list().statuses] == [True]


def test_the_same_stall_again_changes_nothing_and_another_act_does(store: JobStore, either_client: redis.Redis) -> None:
    rollout = stalled(store)
    before = snapshot(either_client)
    assert store.note_stall("a", rollout.fence, {**STALL, "since_s": 310.0})
    assert snapshot(either_client) == before
    store.note_stall("a", rollout.fence, {**STALL, "act": "tool bash", "since_s": 400.0})
    found = store.status("a").stalled
    assert found is not None
    assert found.act == "tool bash"
    assert found.seconds >= 400.0


MOVES: dict[str, Callable[[JobStore, Claim], Any]] = {
    "a turn": lambda store, claim: store.append_turn(claim, Turn(index=1)),
    "an observation": lambda store, claim: store.append_observation(claim, Observation(index=0, call=0)),
    "its own word": lambda store, claim: store.note_stall("a", claim.fence, None),
    "a commit": lambda store, claim: store.commit(claim, {}, next_stage="eval", queue="eval", worked_s=0),
    "a hand-back": lambda store, claim: store.hand_back(claim, waited_s=0),
    "a restart": lambda store, claim: store.restart(claim, worked_s=0),
    "a failure": lambda store, claim: store.fail(claim, BROKEN, worked_s=0),
    "its end": lambda store, claim: store.finish(claim, state="failed", finish_reason="error", worked_s=0),
    "its loss": lambda store, claim: (store._client.zadd("prorl:leases", {"2|a": 1}), store.sweep()),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_job_that_moves_is_not_stalled_any_more(store: JobStore, either_client: redis.Redis, move: str) -> None:
    rollout = stalled(store)
    MOVES[move](store, rollout)
    assert store.status("a").stalled is None
    assert store.stalled() == []
    assert either_client.hexists("prorl:job:a", "stall") == 0


def test_a_claim_that_is_gone_is_not_stalled(store: JobStore, either_client: redis.Redis) -> None:
    first = to_rollout(store)
    claim(store, store.hand_back(first, waited_s=0))
    before = snapshot(either_client)
    assert not store.note_stall("a", first.fence, STALL)
    assert not store.note_stall("nobody", 1, STALL)
    assert snapshot(either_client) == before


def test_those_that_are_stalled_longest_come_first(store: JobStore) -> None:
    for number, since_s in enumerate((300.0, 900.0, 600.0)):
        got = claim(store, submit(store, f"j{number}"))
        store.note_stall(f"j{number}", got.fence, {**STALL, "since_s": since_s})
    assert store.stalled() == ["j1", "j2", "j0"]
    assert store.stalled(limit=1) == ["j1"]
