"""What the store makes of a Redis that was away, or has lost its last seconds."""

from __future__ import annotations

import secrets
import time

import pytest
import redis
from redis_fixtures import claim, submit, to_rollout

from prorl_celery.errors import FenceLost
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.settings import Settings


def now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize(("gap", "kept"), [(0.1, False), (0.6, True), (3.0, True)])
def test_leases_that_lapsed_while_nobody_could_sweep_get_one_more_term(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings, gap: float, kept: bool
) -> None:
    lease = redis_settings.lease_seconds
    rollout = to_rollout(redis_store)
    redis_store.sweep()
    redis_client.set("prorl:swept", now_ms(redis_client) - round(gap * lease * 1000))
    redis_client.zadd("prorl:leases", {f"{rollout.fence}|a": now_ms(redis_client) - 1})
    assert [m.job_id for m in redis_store.sweep().messages] == ([] if kept else ["a"])
    assert redis_store.heartbeat([("a", rollout.fence)]).lost == (set() if kept else {"a"})


def test_a_lease_that_is_about_to_lapse_when_redis_is_back_gets_a_whole_term(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings
) -> None:
    rollout = to_rollout(redis_store)
    redis_client.set("prorl:swept", now_ms(redis_client) - round(0.6 * redis_settings.lease_seconds * 1000))
    redis_client.zadd("prorl:leases", {f"{rollout.fence}|a": now_ms(redis_client) + 500})
    redis_store.sweep()
    left = redis_client.zscore("prorl:leases", f"{rollout.fence}|a") - now_ms(redis_client)
    assert left > redis_settings.lease_seconds * 500


def test_a_process_that_is_known_to_be_dead_gets_no_more_time(redis_store: JobStore, redis_client: redis.Redis) -> None:
    process = "n1 b1 init-0 0123abcd"
    claim(redis_store, submit(redis_store), process=process)
    redis_store.sweep()
    redis_client.set("prorl:swept", now_ms(redis_client) - 60_000)
    assert redis_store.lapse(process) == 1
    assert [m.job_id for m in redis_store.sweep().messages] == ["a"]


def test_what_waits_for_a_node_stays_there_when_the_nodes_word_lapsed_with_redis(
    redis_store: JobStore, redis_client: redis.Redis
) -> None:
    queue = "rollout.n1.b1"
    init = claim(redis_store, submit(redis_store))
    message = redis_store.commit(init, {}, next_stage="rollout", queue=queue, node="n1", worked_s=0)
    redis_client.hset("prorl:job:a", "published", now_ms(redis_client) - 60_000)
    redis_client.zadd("prorl:nodes:seen", {"n1 b1": now_ms(redis_client) - 5_000})
    redis_client.set("prorl:swept", now_ms(redis_client) - 60_000)
    for _ in range(2):
        assert all(m.queue == queue for m in redis_store.sweep().messages)
    assert claim(redis_store, message).queue == queue


def test_a_node_that_was_silent_before_redis_was_away_is_gone(redis_store: JobStore, redis_client: redis.Redis) -> None:
    init = claim(redis_store, submit(redis_store))
    redis_store.commit(init, {}, next_stage="rollout", queue="rollout.n1.b1", node="n1", worked_s=0)
    redis_client.hset("prorl:job:a", "published", now_ms(redis_client) - 60_000)
    redis_client.zadd("prorl:nodes:seen", {"n1 b1": now_ms(redis_client) - 70_000})
    redis_client.set("prorl:swept", now_ms(redis_client) - 60_000)
    assert [m.queue for m in redis_store.sweep().messages] == ["init"]


def test_two_claims_of_one_job_never_share_a_fence_though_redis_forgot_the_first(
    redis_store: JobStore, redis_client: redis.Redis
) -> None:
    init = claim(redis_store, submit(redis_store))
    message = redis_store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0)
    saved = {key: redis_client.dump(key) for key in redis_client.keys("*")}
    forgotten = claim(redis_store, message, process="old", op=secrets.token_hex(8))
    redis_store.append_turn(forgotten, Turn(index=0))
    redis_client.flushall()
    for key, value in saved.items():
        redis_client.restore(key, 0, value)
    held = claim(redis_store, message, process="new", op=f"{forgotten.fence + 1:03x}" + secrets.token_hex(6))
    assert held.fence != forgotten.fence
    assert redis_store.heartbeat([("a", forgotten.fence)]).lost == {"a"}
    for write in (
        lambda: redis_store.append_turn(forgotten, Turn(index=0)),
        lambda: redis_store.hand_back(forgotten, waited_s=0),
    ):
        with pytest.raises(FenceLost):
            write()
    redis_store.append_turn(held, Turn(index=0))
    assert redis_store.heartbeat([("a", held.fence)]).lost == set()


def test_a_claim_whose_answer_was_lost_is_answered_again(redis_store: JobStore) -> None:
    message, op = submit(redis_store), secrets.token_hex(8)
    assert claim(redis_store, message, op=op).fence == claim(redis_store, message, op=op).fence
    assert redis_store.claim("init", "a", message.fence, node="n", process="p", op=secrets.token_hex(8)) is None


def test_leases_lapse_however_rarely_it_is_swept(redis_client: redis.Redis, redis_settings: Settings) -> None:
    store = JobStore(redis_client, redis_settings.with_(lease_seconds=0.5, sweep_seconds=0.4))
    claim(store, submit(store))
    for _ in range(6):
        time.sleep(0.4)
        messages = store.sweep().messages
        if messages:
            break
    assert [message.job_id for message in messages] == ["a"]
