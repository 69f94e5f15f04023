"""A store with a job in each state, for the checker to look at."""

from __future__ import annotations

from collections.abc import Sequence

import redis
from redis_fixtures import claim, request

from prorl_celery.app import Publisher, make_app
from prorl_celery.jobs.batch_models import BatchRequest
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.batches import BatchRegistry
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
    in eval), `done`, `dead`, `stopped` (cancelled) and `stuck` (stalls, is to be cancelled), of batch `b`; one node;
    and batches of prompts, see `busy_batches`.
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
    busy_batches(store, client, settings)


def busy_batches(store: JobStore, client: redis.Redis, settings: Settings) -> None:
    """Batch `q` is being filled: of its first group one sample has ended and one runs, the second waits, as do two
    prompts. Batch `k` is complete and keeps a group for another: one sample is parked, one has not been claimed. Batch
    `x` was cancelled while a sample ran.
    """
    messages: dict[str, Message] = {}

    def keep(made: Sequence[Message]) -> None:
        messages.update((message.job_id, message) for message in made)

    batches = BatchRegistry(client, settings, publisher_of(keep))
    store = JobStore(client, settings, publish=keep)

    def end(job: str, reward: float) -> None:
        held = claim(store, messages.pop(job), process=f"n1 {BOOT} init-0 0")
        store.finish(held, state="completed", finish_reason="stop", reward=reward, worked_s=0.1)

    for batch_id, fields in {
        "q": {"target_groups": 2, "max_inflight_jobs": 4, "memory": "m", "more_prompts": True},
        "k": {"target_groups": 1, "max_inflight_jobs": 4, "on_target": "carry_over"},
        "x": {"target_groups": 1, "max_inflight_jobs": 2},
    }.items():
        prompts = [{"prompt_id": f"p{n}", "instance": {"data_source": "noop", "n": n}} for n in range(4)]
        body = {"batch_id": batch_id, "samples_per_group": 2, "prompts": prompts, **fields}
        batches.create(BatchRequest.model_validate(body))
    end("q:0:0", 1.0)
    for job in ("q:0:1", "x:0:0"):
        claim(store, messages.pop(job), process=f"n1 {BOOT} init-0 0")
    end("k:0:0", 1.0)
    end("k:0:1", 0.0)
    parked = messages.pop("k:1:0")
    assert store.claim("init", parked.job_id, parked.fence, node="n1", process="p", op="abc") is None
    batches.cancel("x")
    messages.pop("x:0:1")
    publish(settings, *messages.values())
