"""A job that is at one thing for too long is told of, with what that is; one that waits its turn is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis_fixtures import to_rollout
from stage_worker import Fleet, eventually, stage_worker

from prorl_celery.jobs.store import JobStore
from tasks.acts import Acts
from tasks.beat import Beat, Held
from tasks.clock import DeadlineThread, StageClock
from tasks.signals import JobSignal

LIMIT = 0.2


class Stage:
    """A claim that is being worked on, as slowly as the test likes."""

    def __init__(self, store: JobStore) -> None:
        self.store = store
        claim = to_rollout(store)
        self.signal = JobSignal()
        self.clock = StageClock(600.0, "rollout", self.signal, DeadlineThread())
        self.clock.start()
        self.acts = Acts("rollout")
        self.beat = Beat(store, 60.0, LIMIT)
        self.beat.hold(Held(claim, self.signal, self.clock, self.acts))

    def stalled(self) -> dict[str, Any] | None:
        """What the job's status says, once it has been at the same thing for longer than the limit."""
        assert eventually(lambda: self.acts.now().seconds > LIMIT)
        self.beat._beat()
        stall = self.store.status("a").stalled
        return None if stall is None else stall.model_dump()


@pytest.fixture
def stage(redis_store: JobStore) -> Iterator[Stage]:
    made = Stage(redis_store)
    yield made
    made.clock.stop()
    made.signal.close()


def test_a_stall_is_told_with_the_innermost_act_and_its_thread(stage: Stage) -> None:
    with stage.acts.act("handler"), stage.acts.act("tool bash"):
        stall = stage.stalled()
    assert stall is not None
    assert (stall["act"], stall["thread"]) == ("tool bash", threading.current_thread().name)
    assert stall["stage"] == "rollout"
    assert stall["seconds"] >= LIMIT


def test_what_moves_again_is_stalled_no_more(stage: Stage) -> None:
    with stage.acts.act("handler"):
        with stage.acts.act("tool bash"):
            assert stage.stalled() is not None
        stage.beat._beat()
        assert stage.store.status("a").stalled is None


def test_each_act_has_its_own_time(stage: Stage) -> None:
    with stage.acts.act("handler"):
        assert eventually(lambda: stage.acts.now().seconds > LIMIT)
        with stage.acts.act("model call http://b"):
            assert stage.acts.now().seconds < LIMIT
        assert stage.acts.now().seconds < LIMIT, "something has happened"


def test_a_wait_that_is_nobodys_fault_is_no_stall(stage: Stage) -> None:
    with stage.acts.act("waiting for a backend", waiting=True):
        assert stage.stalled() is None
    with stage.acts.act("model call http://b"), stage.clock.paused():  # the policy is paused
        assert stage.stalled() is None


def test_a_worker_tells_of_its_stalled_jobs_and_goes_on(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout", stall_seconds=0.5) as worker:
        fleet.rollout("a", "listen", seconds=4.0)
        fleet.rollout("b", "use_a_child")
        assert eventually(lambda: fleet.status("a").stalled and fleet.status("b").stalled), worker.says()
        one, other = (fleet.status(job_id).stalled for job_id in ("a", "b"))
        assert one is not None
        assert other is not None
        assert one.act == "handler"
        assert other.act.startswith("in_child ")
        assert other.act.endswith(":wait_for_the_end")
        assert eventually(lambda: fleet.stands("a", "queued", "eval")), worker.says()
        assert fleet.status("a").stalled is None
