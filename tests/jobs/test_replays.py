"""Every script is sent twice in a row, as a client does whose reply was lost; the keyspace must not notice."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis_fixtures import claim, request, snapshot, submit, to_eval, to_rollout

from prorl_celery.jobs.batch_models import BatchRequest, MorePrompts
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.scheduling.policy import PolicyRegistry, Told
from prorl_celery.settings import Settings
from prorl_celery.store import scripts
from prorl_celery.store.scripts import FOLDER, LIBRARY

OWN_REPLY = {"sweep_leases", "sweep_queues", "purge", "backend_remove", "backend_recount", "policy_look", "batch_add"}
OWN_REPLY |= {"batch_withdraw", "batch_cancel", "batch_tend"}
"""Scripts whose second reply says that nothing was left to do, or that less time is left."""

RENEWS = {
    "heartbeat": "prorl:leases",
    "node_beat": "prorl:nodes:seen",
    "process_beat": "prorl:processes:n1 b1",
    "policy_look": "prorl:policy:processes",
    "sweep_leases": "prorl:swept",
}
"""Scripts whose purpose is to move a time, and the key that holds it."""


NAMES = {path.stem for path in FOLDER.glob("*.lua")} - {*LIBRARY, "settling", "checking"}
NAMES -= {name for name in NAMES if name.startswith("check_")}  # which look, or put right what they then do not find
"""The scripts of the service."""


class Twice:
    """A client that sends every script twice, and compares replies and keyspaces."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.seen: set[str] = set()
        self.names = {scripts._script(name)[0]: name for name in NAMES}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def execute_command(self, *args: Any) -> Any:
        reply = self.client.execute_command(*args)
        if args[0] != "EVALSHA":
            return reply
        name = self.names[args[1]]
        self.seen.add(name)
        before = snapshot(self.client)
        again = self.client.execute_command(*args)
        after = snapshot(self.client)
        for keyspace in (before, after):
            if name in RENEWS and RENEWS[name] in keyspace:
                value = keyspace[RENEWS[name]]
                keyspace[RENEWS[name]] = b"a time" if isinstance(value, bytes) else sorted(value)
        assert after == before, name
        assert again == reply or name in OWN_REPLY, name
        return reply


@pytest.fixture
def twice(either_client: redis.Redis) -> Twice:
    # Redis must know the scripts, or the first of the two would be an EVAL.
    for name in NAMES:
        either_client.script_load(scripts._script(name)[1])
    return Twice(either_client)


def test_every_script_may_run_twice(twice: Twice, either_client: redis.Redis) -> None:
    settings = Settings(node="n1", sweep_seconds=600.0)  # that leads for longer than the test takes
    store: Any = JobStore(twice, settings)  # type: ignore[arg-type]
    backends = BackendRegistry(twice, settings)  # type: ignore[arg-type]
    nodes = NodeRegistry(twice, settings)  # type: ignore[arg-type]
    failure = JobError(kind="sandbox", stage="rollout", message="m", retryable=True)
    broken: dict[str, Any] = {"error": failure, "worked_s": 1}

    nodes.beat({"node": "n1", "boot": "b1", "room": 1})
    nodes.beat_process("n1", "b1", {"name": "init-0", "stage": "init", "busy": 0, "handlers": []})
    assert nodes.nodes()[0]["room"] == 1
    assert nodes.drain("n1") == ["b1"]
    assert nodes.drain("n1", on=False) == ["b1"]
    nodes.forget_process("n1", "b1", "init-0")
    for url in ("http://one", "http://two"):
        backends.put(Backend(url=url, model="m", gives_ids=True))
    backends.change("http://one", policy_version=2, more_errors=1)
    policy = PolicyRegistry(twice, settings)  # type: ignore[arg-type]
    epoch = policy.pause("m", "finish", 60.0)
    assert policy.look("n1 b1 rollout-0", Told(epoch=epoch)).pauses
    assert policy.heed(epoch, "m").complete
    assert policy.resume("m", 3).backends_told == 2
    policy.renew("http://one")
    policy.leave("n1 b1 rollout-0")
    assert store.lead("q")
    store.resign("q")
    assert store.lead("p")

    rollout = to_rollout(store, "whole")
    store.heartbeat([("whole", rollout.fence)])
    assert backends.acquire("whole", rollout.fence, model="m", mode="tokens")
    store.append_turn(rollout, Turn(index=0, closed=False))
    store.append_observation(rollout, Observation(index=0, call=0))
    store.append_observation(rollout, Observation(index=0, call=1, closes=True))
    assert store.note_stall("whole", rollout.fence, {"act": "tool", "thread": "t", "since_s": 300.0})
    store.append_turn(rollout, Turn(index=1))
    rollout = claim(store, store.hand_back(rollout, worked_s=1.0, waited_s=1.0))
    store.append_turn(rollout, Turn(index=2))
    assert store.note_stall("whole", rollout.fence, {"act": "tool", "thread": "t", "since_s": 300.0})
    assert store.note_stall("whole", rollout.fence, None)
    init = claim(store, store.hand_back(claim(store, store.restart(rollout, worked_s=1.0)), waited_s=1.0))
    rollout = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=1))
    store.append_turn(rollout, Turn(index=0))
    evaluation = claim(store, store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=1, waited_s=2))
    assert backends.acquire("whole", evaluation.fence, model="m", mode=None)
    assert backends.release("whole", evaluation.fence)
    evaluation = claim(store, store.fail(evaluation, failure, worked_s=1, waited_s=1))
    store.finish(
        evaluation, state="completed", finish_reason="stop", reward=1, artifacts={"a": 1}, worked_s=1, waited_s=1
    )

    rollout = to_rollout(store, "fails", max_attempts=2)
    backends.acquire("fails", rollout.fence, model="m", mode="tokens")
    store.fail(claim(store, store.fail(rollout, failure, worked_s=1)), failure, worked_s=1)
    retried = claim(store, store.retry("fails"))
    for _ in range(3):  # that are free, then one attempt of two, then the end
        store.commit(retried, {}, next_stage="rollout", queue="rollout", worked_s=1)
        again = store.restart(claim(store, Message("rollout", "rollout", "fails", retried.fence, 5)), **broken)
        retried = claim(store, again)
    for attempt in (2, None):
        message = store.commit(retried, {}, next_stage="rollout", queue="rollout", worked_s=1)
        again = store.restart(claim(store, message), **broken)
        assert (again is None) == (attempt is None)
        if again is not None:
            retried = claim(store, again)
            assert retried.attempt == attempt
    assert store.counts()["failed"] == 1

    submit(store, "queued")
    assert store.cancel("queued") == "ended"
    rollout = to_rollout(store, "running")
    assert store.cancel("running") == "requested"
    store.fail(rollout, failure, worked_s=1)
    rollout = to_rollout(store, "cancelled")
    store.cancel("cancelled")
    store.finish(rollout, state="completed", finish_reason="stop", worked_s=1)

    to_eval(store, "lost")
    to_rollout(store, "gone", max_attempts=1)
    process = "n1 b1 rollout-0 00000001"
    for job in ("first", "second"):
        message = store.hand_back(to_rollout(store, job), waited_s=0)
        claim(store, message, process=process)
    assert store.lapse(process) == 2
    submit(store, "unheard")
    either_client.zadd("prorl:leases", dict.fromkeys(either_client.zrange("prorl:leases", 0, -1), 1))
    assert {message.stage for message in store.sweep().messages} == {"eval", "rollout"}
    for job in ("lost", "unheard"):
        either_client.hset(f"prorl:job:{job}", "published", 1)
    for field in either_client.hkeys("prorl:passed"):
        if field.endswith((b":at", b":empty")):
            either_client.hset("prorl:passed", field, 1)
    assert {"lost", "unheard"} <= {message.job_id for message in store.sweep().messages}

    either_client.zadd("prorl:expiry", {"whole": 1})
    assert store.sweep().purged == 1
    rollout = to_rollout(store, "holds")
    held = backends.acquire("holds", rollout.fence, model="m", mode=None)
    assert held is not None
    backends.remove(held.url, "drain")
    assert backends.recount() == 0
    store.finish(rollout, state="failed", finish_reason="error", worked_s=0)
    for backend in backends.list():
        backends.remove(backend.url, "now")
    nodes.remove("n1", "b1")
    store.create([request("many1"), request("many2")], batch_id="b", group_id="g")
    batches_twice(BatchRegistry(twice, settings), store)  # type: ignore[arg-type]
    assert twice.seen == NAMES


def batches_twice(batches: BatchRegistry, store: JobStore) -> None:
    """One that is fed, comes to its target and is adopted, by one that is cancelled."""
    asked = {"target_groups": 1, "samples_per_group": 2, "more_prompts": True, "on_target": "carry_over"}
    assert batches.create(BatchRequest.model_validate({"batch_id": "d1", **asked, "prompts": batch_prompts(0, 2)}))
    assert batches.add("d1", MorePrompts.model_validate({"prompts": batch_prompts(2, 1)})) == 1
    assert batches.withdraw("d1", "p2")
    for job_id, reward in (("d1:0:0", 0.0), ("d1:0:1", 1.0)):
        held = claim(store, Message("init", "init", job_id, 0, 5), op="abc" + job_id)
        store.finish(held, state="completed", finish_reason="stop", reward=reward, worked_s=1)
    assert batches.status("d1").state == "complete"
    assert batches.create(BatchRequest.model_validate({"batch_id": "d2", **asked, "adopt": "d1"}))
    assert batches.status("d2").groups.carried == 1
    assert batches.cancel("d2")
    assert batches.tend() == 4


def batch_prompts(first: int, count: int) -> list[dict[str, Any]]:
    return [{"prompt_id": f"p{n}", "instance": {"data_source": "noop"}} for n in range(first, first + count)]


def test_a_commit_whose_reply_came_late_is_the_same_message_even_when_the_next_stage_runs(store: JobStore) -> None:
    init = claim(store, submit(store))
    message = store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=1)
    rollout = claim(store, message)
    assert store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=1) == message
    store.append_turn(rollout, Turn(index=0))
