"""A Redis that is full refuses what is new, and lets what it has accepted come to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from redis_fixtures import claim, request, snapshot, submit, to_rollout

from prorl_celery.errors import StoreError, StoreUnavailable
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

BROKEN = JobError(kind="sandbox", stage="init", message="broken", retryable=True)


@pytest.fixture
def fill(redis_client: redis.Redis) -> Iterator[Callable[[], None]]:
    """Gives Redis less memory than it uses."""
    yield lambda: redis_client.config_set("maxmemory", "1") and None
    redis_client.config_set("maxmemory", "0")


@pytest.fixture
def accepted(redis_store: JobStore) -> JobStore:
    """A store with a job that waits, one that runs in rollout and one that failed."""
    submit(redis_store, "waits")
    to_rollout(redis_store, "runs")
    redis_store.fail(claim(redis_store, submit(redis_store, "failed", max_attempts=1)), BROKEN, worked_s=0)
    return redis_store


def test_a_full_redis_refuses_new_jobs_and_new_lives_and_changes_nothing(
    accepted: JobStore, redis_client: redis.Redis, fill: Callable[[], None]
) -> None:
    fill()
    before = snapshot(redis_client)
    with pytest.raises(StoreError, match=r"takes no writes|maxmemory"):  # by whether it was asked lately how full it is
        accepted.create([request("new")])
    with pytest.raises(StoreUnavailable, match="takes no writes"):
        accepted.retry("failed")
    assert snapshot(redis_client) == before


def test_a_full_redis_lets_an_accepted_job_come_to_its_end(
    accepted: JobStore, redis_client: redis.Redis, redis_settings: Settings, fill: Callable[[], None]
) -> None:
    redis_client.zadd("prorl:expiry", {"failed": 1})
    fill()
    backends, nodes = BackendRegistry(redis_client, redis_settings), NodeRegistry(redis_client, redis_settings)
    backends.put(Backend(url="http://a", model="m"))
    nodes.beat({"node": "n1", "boot": "b1"})
    assert accepted.lead("upkeep")
    init = accepted.claim("init", "waits", 0, node="n1", process="p", op="o")
    assert init is not None
    assert accepted.heartbeat([("waits", init.fence)]).lost == set()
    rollout = claim(accepted, accepted.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=1))
    assert backends.acquire("waits", rollout.fence, model="m", mode=None)
    accepted.append_turn(rollout, Turn(index=0, closed=False))
    accepted.append_observation(rollout, Observation(index=0, call=0, closes=True))
    rollout = claim(accepted, accepted.hand_back(rollout, worked_s=1, waited_s=0))
    evaluation = claim(accepted, accepted.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=1))
    accepted.finish(evaluation, state="completed", finish_reason="stop", reward=1.0, worked_s=1)
    assert accepted.result("waits").reward == 1.0
    assert accepted.counts()["completed"] == 1
    assert accepted.cancel("runs") == "requested"
    assert accepted.sweep().purged == 1
