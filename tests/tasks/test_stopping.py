"""A worker that is told to stop finishes what it can, gives the rest back uncharged, and takes nothing new."""

from __future__ import annotations

import signal

import pytest
from stage_worker import Fleet, eventually, message_in, stage_worker


def test_what_ends_within_the_drain_ends_and_the_rest_is_given_back_uncharged(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout", drain_seconds=3.0) as worker:
        fleet.rollout("short", "listen", seconds=1.5)
        fleet.rollout("long", "listen", seconds=60.0)
        assert eventually(lambda: fleet.noted("short", "began") and fleet.noted("long", "began"))
        worker.tell(signal.SIGTERM)
        assert eventually(lambda: fleet.stands("short", "queued", "eval")), worker.says()
        fleet.rollout("new", "nothing")
        assert worker.ends() == 0
    assert fleet.stands("new", "queued", "rollout")
    assert fleet.stands("long", "queued", "rollout"), "it goes on elsewhere"
    assert fleet.status("long").attempt == 1
    assert len([id for id in message_in(fleet, "rollout") if id.startswith("long/")]) == 1
    with stage_worker(fleet, "rollout"):
        assert eventually(lambda: len(fleet.noted("long", "began")) == 2)


def test_a_second_order_to_stop_gives_everything_back_at_once(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout", drain_seconds=600.0) as worker:
        fleet.rollout("a", "listen", seconds=60.0)
        assert eventually(lambda: fleet.noted("a", "began"))
        worker.tell(signal.SIGTERM)
        assert eventually(lambda: "shutdown" in worker.says())
        assert fleet.stands("a", "running", "rollout")
        worker.tell(signal.SIGTERM)
        assert worker.ends() == 0
    assert fleet.stands("a", "queued", "rollout")
    assert fleet.status("a").attempt == 1


@pytest.mark.slow
def test_a_job_that_does_not_listen_is_given_back_all_the_same_and_holds_nobody_up(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout", drain_seconds=0.5, wedge_grace_seconds=600.0) as worker:
        fleet.rollout("a", "block")
        assert eventually(lambda: fleet.noted("a", "began"))
        worker.tell(signal.SIGTERM)
        assert worker.ends() == 0
    assert fleet.stands("a", "queued", "rollout")
    assert fleet.status("a").attempt == 1
    assert len([id for id in message_in(fleet, "rollout") if id.startswith("a/")]) == 1
