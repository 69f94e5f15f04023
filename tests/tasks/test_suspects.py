"""A job that has lost its process twice runs alone in one, whatever its stage."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from redis_fixtures import claim
from stage_worker import BOOT, Fleet, eventually, message_in, stage_worker

from prorl_celery.jobs.messages import Message

DOOMED, ALONE = (f"n1 {BOOT} {name}" for name in ("rollout-0 1", "solo-0 2"))


def suspect(fleet: Fleet, job_id: str) -> Message:
    """A job that was twice lost in rollout, together with another: its message, which nobody has published."""
    messages = {name: fleet.queued(name, "nothing") for name in (job_id, f"{job_id}-neighbour")}
    for loss in range(2):
        for name, message in messages.items():
            claim(fleet.store, message, process=DOOMED, op=f"{loss}{name}")
        assert fleet.store.lapse(DOOMED) == 2
        messages = {message.job_id: message for message in fleet.store.sweep().messages}
    assert messages[job_id].queue == "solo"
    assert fleet.status(job_id).attempt == 1
    return messages[job_id]


def test_an_ordinary_worker_hands_a_suspect_over_and_asks_for_a_process_for_it(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.publisher.publish(replace(suspect(fleet, "a"), queue="rollout"))  # as a sweep of an older version might
        assert eventually(lambda: message_in(fleet, "solo")), worker.says()
        assert eventually(lambda: "solo" in worker.asked)
        assert fleet.stands("a", "queued", "rollout")
        assert fleet.status("a").attempt == 1
        assert not fleet.noted("a", "began")


@pytest.mark.slow
def test_the_process_for_suspects_runs_every_stage_and_ends_when_it_has_nothing_to_do(fleet: Fleet) -> None:
    idle = "import tasks.warden; tasks.warden.IDLE_SECONDS = 3.0"
    with stage_worker(fleet, "solo", before=idle) as worker:
        assert worker.record["slots"] == 1
        fleet.publisher.publish(suspect(fleet, "a"))
        fleet.publisher.publish(replace(suspect(fleet, "b"), queue=f"solo.{fleet.settings.node}.{BOOT}"))
        for job_id in ("a", "b"):
            assert eventually(partial(fleet.noted, job_id, "done")), worker.says()
            assert fleet.noted(job_id, "began") == [worker.process.pid]
            # It has come further than where it was lost: eval is anybody's.
            assert eventually(partial(fleet.stands, job_id, "queued", "eval"))
        assert eventually(lambda: len(message_in(fleet, "eval")) == 2)
        assert worker.ends() == 0, "nobody told it to"


def test_the_process_for_suspects_takes_them_back_to_init_too(fleet: Fleet) -> None:
    with stage_worker(fleet, "solo") as worker:
        message = suspect(fleet, "a")
        got = claim(fleet.store, message, process=ALONE, op="1")
        assert fleet.store.lapse(ALONE) == 1
        (message,) = fleet.store.sweep().messages
        assert (message.stage, message.queue) == ("init", "solo")
        fleet.publisher.publish(message)
        assert eventually(lambda: fleet.noted("a", "done")), worker.says()
        assert fleet.status("a").attempt == got.attempt + 1, "the loss of a process of its own is the job's fault"
