"""The process that forks a worker's children dies: the worker is replaced, and only who did it is to blame."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from stage_worker import Fleet, eventually, stage_worker

from prorl_celery.jobs.messages import Message


def nursery_of(pid: int) -> int:
    """The pid of a worker's nursery."""
    (nursery,) = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(nursery)


def test_a_worker_without_its_nursery_is_retired_and_its_jobs_finish(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("a", "listen", seconds=3.0)
        assert eventually(lambda: fleet.noted("a", "began"))
        os.kill(nursery_of(worker.process.pid), signal.SIGKILL)
        assert eventually(lambda: "retire" in worker.asked), worker.says()
        assert eventually(lambda: fleet.stands("a", "queued", "eval")), worker.says()
        assert worker.ends() == 0


def test_a_job_whose_call_had_not_begun_goes_elsewhere_uncharged(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("a", "wait_then_use_a_child", seconds=2.0)
        assert eventually(lambda: fleet.noted("a", "began"))
        os.kill(nursery_of(worker.process.pid), signal.SIGKILL)
        assert worker.ends() == 0
        assert fleet.stands("a", "queued", "rollout")
        assert fleet.status("a").attempt == 1


def test_a_call_that_was_under_way_is_a_loss_which_the_sweep_judges(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("neighbour", "listen", seconds=20.0)
        assert eventually(lambda: fleet.noted("neighbour", "began"))
        fleet.rollout("a", "kill_the_nursery")
        assert eventually(lambda: fleet.sweep() == ["a"]), worker.says()
        assert fleet.stands("a", "queued", "rollout")
        assert fleet.status("a").attempt == 1, "it did not run alone"
        assert fleet.stands("neighbour", "running", "rollout")
        assert "retire" in worker.asked


@pytest.mark.slow
def test_a_job_that_kills_the_nursery_each_time_comes_to_run_alone(fleet: Fleet) -> None:
    fleet.rollout("a", "kill_the_nursery")
    for queue in ("rollout", "solo"):
        with stage_worker(fleet, "rollout") as worker:
            assert worker.ends() == 0
        swept: list[Message] = []
        assert eventually(lambda: swept.extend(fleet.store.sweep().messages) or swept), "its lease lapses"  # noqa: B023
        (message,) = swept
        assert (message.job_id, message.queue) == ("a", queue)
        fleet.publisher.publish(message)
    assert len(set(fleet.noted("a", "began"))) == 2
