"""Messages of another version: a task or a stage that this one does not know is told of, never dropped in silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from redis_fixtures import claim
from stage_worker import Fleet, eventually, message_in, stage_worker

from prorl_celery.app import queue_named
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import Stage


def waiting_for_a_new_stage(fleet: Fleet, job_id: str, **fields: Any) -> Message:
    """A job that a later version has committed to a stage of its own; a worker of this version gets the message."""
    got = claim(fleet.store, fleet.queued(job_id, "nothing", **fields), op=f"0 {job_id}")
    stage = cast(Stage, "polish")
    message = fleet.store.commit(got, {"sandboxes": {}}, next_stage=stage, queue="rollout", worked_s=0.0)
    return replace(message, queue="rollout")


def test_a_job_in_an_unknown_stage_is_tried_again_and_ends_as_failed_with_the_reason(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.publisher.publish(waiting_for_a_new_stage(fleet, "a", max_attempts=2))
        assert eventually(lambda: message_in(fleet, "init")), worker.says()
        status = fleet.status("a")
        assert (status.state, status.stage, status.attempt) == ("queued", "init", 2)
        fleet.publisher.publish(waiting_for_a_new_stage(fleet, "b", max_attempts=1))
        assert eventually(lambda: fleet.status("b").state == "failed"), worker.says()
        error = fleet.status("b").error
        assert error is not None
        assert (error.kind, error.retryable) == ("internal", True)
        assert "polish" in error.message
        assert fleet.status("b").reward is None
        fleet.rollout("c", "nothing")
        assert eventually(lambda: fleet.stands("c", "queued", "eval")), "the worker works on"


def test_a_message_that_is_none_of_ours_is_told_of_and_does_no_harm(fleet: Fleet) -> None:
    app = fleet.publisher._app
    with stage_worker(fleet, "rollout") as worker:
        for name, task_id in (("other.task", "a/1"), ("prorl.polish", "no fence"), ("prorl.polish", "nobody/1")):
            app.send_task(name, args=[], task_id=task_id, queue=queue_named("rollout"))
        fleet.rollout("c", "nothing")
        assert eventually(lambda: fleet.stands("c", "queued", "eval")), worker.says()
        assert worker.process.poll() is None
        assert "message no fence for the task prorl.polish is none of ours" in worker.says()


def test_a_message_that_says_more_than_this_version_reads_is_worked_off(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        message = fleet.queued("a", "nothing")
        fleet.publisher._app.send_task(
            "prorl.rollout", args=["a", message.fence, {"new": True}], task_id="a/1", queue=queue_named("rollout")
        )
        assert eventually(lambda: fleet.stands("a", "queued", "eval")), worker.says()
