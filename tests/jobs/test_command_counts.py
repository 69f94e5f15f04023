"""What a job's whole life costs in client commands, as Redis's own MONITOR sees it."""

import redis
from redis_fixtures import claim, submit

from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings

MOST = 12


def test_a_jobs_life_costs_at_most_twelve_commands(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings
) -> None:
    backends = BackendRegistry(redis_client, redis_settings)
    backends.put(Backend(url="http://a", model="m"))
    one_life(redis_store, backends, "warm")
    with redis_client.monitor() as monitor:
        one_life(redis_store, backends, "a")
        redis_client.echo("the end")
        seen = []
        for line in monitor.listen():
            if line["command"].startswith("ECHO"):
                break
            if line["client_type"] != "lua" and not line["command"].startswith("CLIENT"):  # a new connection's name
                seen.append(line["command"].split()[0])
    print(f"{len(seen)} client commands: {seen}")
    assert len(seen) <= MOST
    assert set(seen) == {"EVALSHA"}


def one_life(store: JobStore, backends: BackendRegistry, job_id: str) -> None:
    init = claim(store, submit(store, job_id))
    rollout = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=1))
    assert backends.acquire(job_id, rollout.fence, model="m", mode=None)
    store.append_turn(rollout, Turn(index=0))
    store.heartbeat([(job_id, rollout.fence)])
    evaluation = claim(store, store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=1))
    store.finish(evaluation, state="completed", finish_reason="stop", reward=1.0, worked_s=1)
