"""A store with a job in each state, for the checker to look at."""

from __future__ import annotations

import redis
from redis_fixtures import claim, request

from prorl_celery.app import Publisher, make_app
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

URL = "http://a"
BOOT = "b1"


def publish(settings: Settings, *messages: Message) -> None:
    app = make_app(settings, connections=1)
    Publisher(app).publish_all(messages)
    app.close()


def node(client: redis.Redis, settings: Settings) -> NodeRegistry:
    registry = NodeRegistry(client, settings)
    registry.beat({"node": "n1", "boot": BOOT})
    return registry


def busy_store(store: JobStore, client: redis.Redis, settings: Settings) -> None:
    """Jobs `waits`, `runs` (in rollout, with a backend, a turn, a sandbox), `bound` (waits on the node), `scored` (runs
    in eval), `done`, `dead`, `stopped` (cancelled) and `stuck` (stalls, is to be cancelled), of batch `b`; one node.
    """
    node(client, settings)
    backends = BackendRegistry(client, settings)
    backends.put(Backend(url=URL, model="m"))
    backends.put(Backend(url="http://b", model="m"))
    for job in ("waits", "runs", "bound", "scored", "done", "dead", "stopped", "stuck"):
        store.create([request(job, max_attempts=1, tags={"run": "x"})], batch_id="b")
    publish(settings, *(Message("init", "init", job, 0, 5) for job in ("waits", "stopped")))
    for job in ("runs", "bound", "scored", "done", "dead", "stuck"):
        init = claim(store, Message("init", "init", job, 0, 5), process=f"n1 {BOOT} init-0 0")
        message = store.commit(
            init, {}, next_stage="rollout", queue=f"rollout.n1.{BOOT}", node="n1", sandboxes=[f"s-{job}"], worked_s=0.1
        )
        if job == "bound":
            publish(settings, message)
            continue
        rollout = claim(store, message, process=f"n1 {BOOT} rollout-0 0")
        assert backends.acquire(job, rollout.fence, model="m", mode=None)
        store.append_turn(rollout, Turn(index=0))
        if job == "dead":
            error = JobError(kind="backend", stage="rollout", message="none came", retryable=True)
            assert store.fail(rollout, error, worked_s=0.1) is None
        elif job in ("scored", "done"):
            scored = claim(store, store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=0.1))
            if job == "done":
                store.finish(scored, state="completed", finish_reason="stop", reward=1.0, worked_s=0.1)
        elif job == "stuck":
            store.note_stall("stuck", rollout.fence, {"act": "tool bash", "thread": "t", "since_s": 400.0})
            store.cancel("stuck")
    store.cancel("stopped")
