"""Redis's keys are back to a constant when every job has expired, however it lived and ended. In real time."""

from __future__ import annotations

import time
from typing import Any

import redis
from redis_fixtures import claim, complete, request, submit, to_eval, to_rollout

from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

CONSTANT = {"counts", "seq", "swept", "queues", "results", "results:trimmed", "backends", "heap:m"}
"""What stays: counters, the names of the queues that all nodes share, backends."""

BROKEN = JobError(kind="sandbox", stage="rollout", message="m", retryable=True)
PROCESS = "n1 b1 rollout-0 00000001"


def every_kind_of_life(store: JobStore, client: Any, settings: Settings, batch: str) -> None:
    """Jobs that end in every way, after losses, stalls, retries and on a node that dies."""
    backends, nodes = BackendRegistry(client, settings), NodeRegistry(client, settings)
    backends.put(Backend(url="http://a", model="m"))
    nodes.beat({"node": "n1", "boot": "b1"})
    complete(store, f"done-{batch}")
    store.create([request(f"batched-{batch}")], batch_id=batch, group_id="g")
    store.cancel(f"batched-{batch}")
    lost = []
    for name in ("lost", "neighbour", "third"):
        init = claim(store, submit(store, f"{name}-{batch}"))
        message = store.commit(
            init, {}, next_stage="rollout", queue="rollout.n1.b1", worked_s=0, node="n1", sandboxes=["box"]
        )
        lost.append(claim(store, message, process=PROCESS))
        backends.acquire(lost[-1].job_id, lost[-1].fence, model="m", mode=None)
        store.append_turn(lost[-1], Turn(index=0, closed=False))
        store.append_observation(lost[-1], Observation(index=0, call=0))
        store.note_stall(lost[-1].job_id, lost[-1].fence, {"act": "tool", "thread": "t", "since_s": 300.0})
    for _ in range(3):  # until they are suspects, and charged
        store.lapse(PROCESS)
        for message in store.sweep().messages:
            claim(store, message, process=PROCESS)
    nodes.drain("n1")
    dead = claim(store, submit(store, f"dead-{batch}", max_attempts=1))
    store.fail(dead, BROKEN, worked_s=0)
    store.fail(claim(store, store.retry(f"dead-{batch}")), BROKEN, worked_s=0)
    store.finish(to_rollout(store, f"late-{batch}"), state="timed_out", finish_reason="timeout", worked_s=0)
    to_eval(store, f"running-{batch}")
    nodes.remove("n1", "b1")
    for status in store.list(limit=100).statuses:
        if status.state in ("queued", "running") and store.cancel(status.job_id) == "requested":
            client.zadd("prorl:cancels", {status.job_id: 1})
    store.sweep()
    assert sum(store.counts()[state] for state in ("queued", "running")) == 0


def test_the_keys_are_back_to_a_constant_when_all_has_expired(
    redis_client: redis.Redis, redis_settings: Settings
) -> None:
    settings = redis_settings.with_(result_ttl_seconds=1.0, id_ttl_seconds=2.0, republish_after_seconds=0.1)
    store = JobStore(redis_client, settings)
    sizes = []
    for batch in ("one", "two"):
        every_kind_of_life(store, redis_client, settings, batch)
        assert len(redis_client.keys("prorl:job:*")) >= 8
        # A process that was lost is remembered for ten minutes, which this test does not wait for.
        assert 0 < redis_client.pttl(f"prorl:lost:{PROCESS}") <= 600_000
        redis_client.delete(f"prorl:lost:{PROCESS}")
        deadline = time.monotonic() + 60
        while left := {key.decode().removeprefix("prorl:") for key in redis_client.keys("*")} - CONSTANT:
            assert time.monotonic() < deadline, sorted(left)
            store.sweep()
        assert redis_client.xlen("prorl:results") == 0
        assert redis_client.smembers("prorl:queues") <= {b"init", b"rollout", b"eval", b"solo"}
        sizes.append(len(redis_client.keys("*")))  # not DBSIZE, which counts what has expired and is not yet reaped
    assert sizes[0] == sizes[1]
