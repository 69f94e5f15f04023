"""What a job's whole life costs in client commands, as Redis's own MONITOR sees it."""

from collections.abc import Callable

import pytest
import redis
from redis_fixtures import claim, request, submit, to_rollout

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings

MOST = 12

NOT_OF_THE_SWEEP = {"cmdstat_config|resetstat", "cmdstat_info", "cmdstat_set"}
"""The test's own; and the one command that a sweep sends only now and then, once a second."""


def test_a_jobs_life_costs_at_most_twelve_commands(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings
) -> None:
    backends = BackendRegistry(redis_client, redis_settings)
    backends.put(Backend(url="http://a", model="m"))
    one_life(redis_store, backends, "warm")
    seen = sent(redis_client, lambda: one_life(redis_store, backends, "a"))
    print(f"{len(seen)} client commands: {seen}")
    assert len(seen) <= MOST
    assert set(seen) == {"EVALSHA"}


def test_a_turn_costs_one_command_and_one_for_each_of_its_calls(
    redis_store: JobStore, redis_client: redis.Redis
) -> None:
    warm, rollout = to_rollout(redis_store, "warm"), to_rollout(redis_store, "a")

    def turn(claim: Claim) -> None:
        redis_store.append_turn(claim, Turn(index=0, closed=False))
        for call in range(3):
            redis_store.append_observation(claim, Observation(index=0, call=call, closes=call == 2))

    turn(warm)
    assert sent(redis_client, lambda: turn(rollout)) == ["EVALSHA"] * 4


def test_what_is_kept_beside_a_jobs_own_data_weighs_little(redis_store: JobStore, redis_client: redis.Redis) -> None:
    rollout = to_rollout(redis_store, "a")
    for index in range(10):
        redis_store.append_turn(rollout, Turn(index=index))
    redis_store.finish(rollout, state="completed", finish_reason="stop", reward=1.0, worked_s=1)
    weights = {key: redis_client.memory_usage(f"prorl:{key}:a") for key in ("job", "events")}
    print(f"bytes of an ended job of ten turns: {weights}")
    assert weights["job"] < 1_400
    assert weights["events"] < 1_000


@pytest.mark.parametrize("state", ["running", "ended"])
def test_a_sweep_that_finds_nothing_costs_the_same_however_many_jobs_there_are(
    redis_store: JobStore, redis_client: redis.Redis, state: str
) -> None:
    costs = []
    for few_or_many in (10, 300):
        redis_client.flushall()
        redis_store.create([request(f"j{number}") for number in range(few_or_many)])
        for number in range(few_or_many):
            got = claim(redis_store, Message("init", "init", f"j{number}", 0, 5))
            if state == "ended":
                redis_store.finish(got, state="failed", finish_reason="error", worked_s=0)
        redis_store.sweep()
        redis_client.config_resetstat()
        assert redis_store.sweep().messages == []
        statistics = redis_client.info("commandstats").items()
        costs.append({name: one["calls"] for name, one in statistics if name not in NOT_OF_THE_SWEEP})
    print(f"commands within the scripts of a sweep: {costs[0]}")
    assert costs[0] == costs[1]


def sent(client: redis.Redis, do: Callable[[], None]) -> list[str]:
    """The client commands that this sends."""
    with client.monitor() as monitor:
        do()
        client.echo("the end")
        seen = []
        for line in monitor.listen():
            if line["command"].startswith("ECHO"):
                return seen
            if line["client_type"] != "lua" and not line["command"].startswith("CLIENT"):  # a new connection's name
                seen.append(line["command"].split()[0])
    raise AssertionError("the monitor has ended")


def one_life(store: JobStore, backends: BackendRegistry, job_id: str) -> None:
    init = claim(store, submit(store, job_id))
    rollout = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=1))
    assert backends.acquire(job_id, rollout.fence, model="m", mode=None)
    store.append_turn(rollout, Turn(index=0))
    store.heartbeat([(job_id, rollout.fence)])
    evaluation = claim(store, store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=1))
    store.finish(evaluation, state="completed", finish_reason="stop", reward=1.0, worked_s=1)
