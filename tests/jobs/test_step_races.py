"""Steps that want the same job at once: one wins, the others are told so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from redis_fixtures import claim, complete, submit, to_eval, to_rollout

from prorl_celery.errors import FenceLost, NotFailed
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import TERMINAL, JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn

ROUNDS = 25
BROKEN = JobError(kind="sandbox", stage="rollout", message="m", retryable=True)


def at_once(*steps: Callable[[], Any]) -> list[Any]:
    """What these steps give when all begin in one moment; an error of ours in its place."""
    gate = threading.Barrier(len(steps))

    def go(step: Callable[[], Any]) -> Any:
        gate.wait(timeout=30)
        try:
            return step()
        except (FenceLost, NotFailed) as error:
            return error

    with ThreadPoolExecutor(len(steps)) as pool:
        return [found.result(timeout=60) for found in [pool.submit(go, step) for step in steps]]


def ended_once(store: JobStore, client: Any) -> bool:
    entries = [fields[b"job"] for _, fields in client.xrange("prorl:results")]
    return entries == [b"a"] and store.result("a").state in TERMINAL


def test_of_a_cancel_and_a_commit_exactly_one_wins(redis_store: JobStore, redis_client: redis.Redis) -> None:
    for _ in range(ROUNDS):
        redis_client.flushall()
        got = to_rollout(redis_store)
        word, reply = at_once(
            lambda: redis_store.cancel("a"),
            lambda got=got: redis_store.commit(got, {}, next_stage="eval", queue="eval", worked_s=0),
        )
        if word == "requested":  # the cancel was first: the commit ended the job
            assert isinstance(reply, FenceLost)
        else:
            assert (word, isinstance(reply, Message)) == ("ended", True)
        assert redis_store.status("a").state == "cancelled"
        assert ended_once(redis_store, redis_client)


def test_of_a_cancel_and_a_finish_exactly_one_wins(redis_store: JobStore, redis_client: redis.Redis) -> None:
    for _ in range(ROUNDS):
        redis_client.flushall()
        got = to_eval(redis_store)
        word, _ = at_once(
            lambda: redis_store.cancel("a"),
            lambda got=got: redis_store.finish(got, state="completed", finish_reason="stop", reward=1.0, worked_s=0),
        )
        state, reward = redis_store.result("a").state, redis_store.result("a").reward
        assert (word, state, reward) in (("requested", "cancelled", None), ("already_ended", "completed", 1.0))
        assert ended_once(redis_store, redis_client)


def test_of_a_lapse_and_a_commit_exactly_one_moves_the_job(redis_store: JobStore, redis_client: redis.Redis) -> None:
    for _ in range(ROUNDS):
        redis_client.flushall()
        got = to_rollout(redis_store)
        redis_client.zadd("prorl:leases", {f"{got.fence}|a": 1})
        swept, reply = at_once(
            lambda: redis_store.sweep().messages,
            lambda got=got: redis_store.commit(got, {}, next_stage="eval", queue="eval", worked_s=0),
        )
        moved = [*swept, *([reply] if isinstance(reply, Message) else [])]
        assert len(moved) == 1
        status = redis_store.status("a")
        assert (status.state, status.stage) == ("queued", moved[0].stage)
        assert claim(redis_store, moved[0]).going_on == (moved[0].stage == "rollout")


def test_a_turn_that_races_a_lapse_is_in_the_log_or_refused(redis_store: JobStore, redis_client: redis.Redis) -> None:
    for _ in range(ROUNDS):
        redis_client.flushall()
        got, other = to_rollout(redis_store), to_rollout(redis_store, "other")
        redis_client.zadd("prorl:leases", {f"{one.fence}|{one.job_id}": 1 for one in (got, other)})
        swept, reply = at_once(
            lambda: redis_store.sweep().messages,
            lambda got=got: redis_store.append_turn(got, Turn(index=0)),
        )
        message = next(message for message in swept if message.job_id == "a")
        assert claim(redis_store, message).going_on
        assert len(redis_store.turns("a")) == (0 if isinstance(reply, FenceLost) else 1)


def test_of_many_steps_that_end_one_claim_one_does(redis_store: JobStore, redis_client: redis.Redis) -> None:
    for _ in range(ROUNDS):
        redis_client.flushall()
        got = to_rollout(redis_store)
        replies = at_once(
            lambda got=got: redis_store.hand_back(got, waited_s=0),
            lambda got=got: redis_store.restart(got, worked_s=0),
            lambda got=got: redis_store.fail(got, BROKEN, worked_s=0),
            lambda got=got: redis_store.commit(got, {}, next_stage="eval", queue="eval", worked_s=0),
        )
        (message,) = [reply for reply in replies if isinstance(reply, Message)]
        assert message.fence == got.fence
        assert redis_client.zcard("prorl:leases") == 0
        assert redis_store.status("a").stage == message.stage


def test_many_retries_at_once_give_one_life(redis_store: JobStore, redis_client: redis.Redis) -> None:
    for _ in range(ROUNDS):
        redis_client.flushall()
        redis_store.fail(claim(redis_store, submit(redis_store, max_attempts=1)), BROKEN, worked_s=0)
        replies = at_once(*[lambda: redis_store.retry("a")] * 4)
        assert [isinstance(reply, Message) for reply in replies].count(True) == 1
        assert redis_client.hget("prorl:job:a", "retries") == b"1"
        assert redis_store.counts()["queued"] == 1


def test_sweeps_of_many_nodes_at_once_handle_each_loss_once(redis_store: JobStore, redis_client: redis.Redis) -> None:
    for number in range(40):
        to_rollout(redis_store, f"j{number}")
    redis_client.zadd("prorl:leases", dict.fromkeys(redis_client.zrange("prorl:leases", 0, -1), 1))
    swept = at_once(*[lambda: redis_store.sweep().messages] * 4)
    messages = [message for found in swept for message in found]
    assert sorted(message.job_id for message in messages) == sorted(f"j{number}" for number in range(40))
    assert redis_store.counters()["lost:rollout"] == 40
    complete(redis_store, "still")
