"""Whatever is lost or left in the store: after a repair it adds up, and the jobs that live come to their ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from checking_help import busy_store, node
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prorl_celery.checking import check, repair
from prorl_celery.errors import JobNotFound, ResultExpired
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.settings import Settings

JOBS = ("waits", "runs", "bound", "scored", "done", "dead", "stopped", "stuck")
BATCHES = ("q", "k", "x")
OTHERS = ("nobody", "http://a", "http://z", "1|runs", "n1 b1", "3:init", "junk", "q", "k:1", "q:1:0", "x:0:0", "7")
NAMES = st.sampled_from([*JOBS, *OTHERS])
Choice = Callable[[list[bytes]], bytes]


def drop(client: redis.Redis, key: bytes, choose: Choice) -> None:
    """Take one thing out of a key, or the key away."""
    match client.type(key):
        case b"hash":
            client.hdel(key, choose(sorted(client.hkeys(key))))
        case b"set":
            client.srem(key, choose(sorted(client.smembers(key))))
        case b"zset":
            client.zrem(key, choose(client.zrange(key, 0, -1)))
        case b"list":
            client.lpop(key)
        case b"stream":
            client.xdel(key, choose([entry for entry, _ in client.xrange(key)] or [b"0-1"]))
        case _:
            client.delete(key)


def add(client: redis.Redis, key: bytes, name: str, number: int) -> None:
    """Put something into a key that should not be there."""
    match client.type(key):
        case b"set":
            client.sadd(key, name)
        case b"zset":
            client.zadd(key, {name: number})
        case b"stream":
            client.xadd(key, {"job": name})
        case b"list":
            return  # a check does not read what is packed
        case b"hash" if key.startswith(b"prorl:joining:"):
            client.hset(key, name, number)
        case _:
            client.set(b"prorl:" + name.encode(), number)


def damage(client: redis.Redis, data: st.DataObject) -> None:
    ours = sorted(client.keys("prorl:*"))
    key = data.draw(st.sampled_from(ours))
    how = data.draw(st.sampled_from(["drop", "add", "delete", "persist", "expire"]))
    if how == "drop":
        drop(client, key, lambda choices: data.draw(st.sampled_from(choices)))
    elif how == "add":
        add(client, key, data.draw(NAMES), data.draw(st.integers(0, 10**6)))
    elif how == "delete":
        client.delete(key)
    elif how == "persist":
        client.persist(key)
    else:
        client.pexpire(key, 10**8)


def run_on(store: JobStore, client: redis.Redis, own: Settings) -> None:
    """What workers and sweeps do, until nothing lives: who held jobs is dead, nobody sends or adopts any more."""
    batches = BatchRegistry(client, own)
    for _ in range(60):
        if client.zcard("prorl:batches_left"):
            client.zadd("prorl:batches_left", dict.fromkeys(client.zrange("prorl:batches_left", 0, -1), 1))
        for batch in BATCHES:
            if client.hget(f"prorl:dapo:{batch}", "state") == b"waiting_for_prompts":
                client.hset(f"prorl:dapo:{batch}", "waiting_since", 1)
        batches.tend()
        live = [job for state in ("queued", "running") for job in store.list(state=state).statuses]
        if not live:
            return
        if leases := client.zrange("prorl:leases", 0, -1):
            client.zadd("prorl:leases", dict.fromkeys(leases, 1))
        store.sweep()
        for job in live:
            status = store.status(job.job_id)
            parked, revoked = (
                client.hexists(f"prorl:job:{job.job_id}", "parked"),
                client.zscore("prorl:revoked", job.job_id),
            )
            if status.state == "queued" and not parked and not revoked:
                fence, queue, prio = client.hmget(f"prorl:job:{job.job_id}", "fence", "queue", "prio")
                take_a_step(store, Message(status.stage, queue.decode(), job.job_id, int(fence), int(prio or 5)))
    raise AssertionError([store.status(job.job_id) for job in live])


def take_a_step(store: JobStore, message: Message) -> None:
    op = f"step-{message.fence}"
    claimed = store.claim(message.stage, message.job_id, message.fence, node="n1", process="n1 b1 solo 1", op=op)
    if claimed is None:
        assert store.status(message.job_id).batch_id in BATCHES  # it waits for an adoption
    elif message.stage == "eval":
        reward = float(message.job_id.endswith(":1"))
        store.finish(claimed, state="completed", finish_reason="stop", reward=reward, worked_s=0.1)
    else:
        following = "rollout" if message.stage == "init" else "eval"
        store.commit(claimed, {}, next_stage=following, queue=following, worked_s=0.1)


def mend_and_run_on(redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings) -> None:
    left = repair(check(redis_client, redis_settings), redis_client, redis_settings)
    assert left == []
    node(redis_client, redis_settings)
    run_on(redis_store, redis_client, redis_settings)
    assert check(redis_client, redis_settings) == []
    for job in JOBS:
        try:
            redis_store.result(job)
        except (JobNotFound, ResultExpired):
            continue  # its record, or its request, was what was lost
    assert redis_client.exists("prorl:revoked", "prorl:batches_live", "prorl:batches_left") == 0
    for batch in BATCHES:
        assert redis_client.hget(f"prorl:dapo:{batch}", "state") in {b"complete", b"exhausted", b"cancelled", None}


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(data=st.data())
def test_a_damaged_store_is_mended_and_its_jobs_finish(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings, data: st.DataObject
) -> None:
    redis_client.flushall()
    busy_store(redis_store, redis_client, redis_settings)
    for _ in range(data.draw(st.integers(1, 6))):
        damage(redis_client, data)
    mend_and_run_on(redis_store, redis_client, redis_settings)


@pytest.mark.parametrize("lost", [["q"], ["k"], ["k", "q"], ["k", "q", "x"]], ids=" ".join)
def test_the_requests_of_whole_batches_are_lost(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings, lost: list[str]
) -> None:
    """No sample of theirs is drawn anew, to be found at fault in its turn: so a repair comes to an end."""
    busy_store(redis_store, redis_client, redis_settings)
    redis_client.delete(*(f"prorl:dapo_specs:{batch}" for batch in lost))
    mend_and_run_on(redis_store, redis_client, redis_settings)
    assert not [job for batch in lost for job in redis_client.zrange(f"prorl:batch:{batch}", 0, -1) if b":r" in job]
