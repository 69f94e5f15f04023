"""A stage that does not listen does not keep its slot for ever, and what becomes of its job is written down."""

from __future__ import annotations

import pytest
from stage_worker import Fleet, eventually, stage_worker

TIMEOUT = {"init": 60.0, "rollout": 0.5, "eval": 60.0}


def test_an_endless_loop_in_python_is_broken_off_and_its_process_works_on(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("a", "spin", timeouts=TIMEOUT)
        assert eventually(lambda: fleet.status("a").state == "timed_out"), worker.says()
        error = fleet.status("a").error
        assert error is not None
        assert (error.kind, error.stage) == ("timeout", "rollout")
        assert eventually(lambda: worker.record["busy"] == 0), worker.says()
        fleet.rollout("b", "nothing")
        assert eventually(lambda: fleet.stands("b", "queued", "eval")), worker.says()
        assert (worker.record["wedged"], worker.record["retiring"]) == (0, False)
        assert "retire" not in worker.asked


@pytest.mark.parametrize("deaf", ["block", pytest.param("ignore", marks=pytest.mark.slow)])
def test_a_slot_that_is_wedged_retires_its_process_and_its_neighbours_finish(fleet: Fleet, deaf: str) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("neighbour", "listen", seconds=6.0)
        fleet.rollout("a", deaf, timeouts=TIMEOUT)
        assert eventually(lambda: fleet.status("a").state == "timed_out"), worker.says()
        error = fleet.status("a").error
        assert error is not None
        assert (error.kind, error.stage) == ("timeout", "rollout")
        assert eventually(lambda: "retire" in worker.asked)
        assert eventually(lambda: worker.record["retiring"])
        assert worker.record["wedged"] == 1
        assert fleet.stands("neighbour", "running", "rollout"), "too slow a machine for this test"
        fleet.rollout("new", "nothing")
        assert eventually(lambda: fleet.stands("neighbour", "queued", "eval")), worker.says()
        assert worker.ends() == 0
        assert fleet.stands("new", "queued", "rollout"), "it should have taken no new job"
        assert not worker.record
        with stage_worker(fleet, "rollout"):
            assert eventually(lambda: fleet.stands("new", "queued", "eval"))
        assert len(fleet.noted("a", "began")) == 1
        assert bool(fleet.noted("a", "ignored")) is (deaf == "ignore"), "an endless loop is tried to break off"


def test_a_cancel_that_is_not_listened_to_is_written_down_all_the_same(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("a", "block")
        assert eventually(lambda: fleet.noted("a", "began"))
        assert fleet.store.cancel("a") == "requested"
        assert eventually(lambda: fleet.status("a").state == "cancelled"), worker.says()
        assert worker.ends() == 0


@pytest.mark.slow
def test_a_wedged_stage_that_was_fenced_out_writes_nothing(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("a", "block")
        assert eventually(lambda: fleet.noted("a", "began"))
        (lease,) = fleet.client.zrange("prorl:leases", 0, -1)
        fleet.client.zrem("prorl:leases", lease)
        assert eventually(lambda: "retire" in worker.asked), worker.says()
        assert worker.ends() == 0
        assert fleet.stands("a", "running", "rollout")


@pytest.mark.slow
def test_work_that_goes_on_for_a_while_after_the_deadline_is_no_wedge(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout", wedge_grace_seconds=20.0) as worker:
        fleet.rollout("a", "work", seconds=2.0, timeouts=TIMEOUT)
        assert eventually(lambda: fleet.status("a").state == "timed_out"), worker.says()
        fleet.rollout("b", "nothing")
        assert eventually(lambda: fleet.stands("b", "queued", "eval")), worker.says()
        assert "retire" not in worker.asked


def test_a_copy_that_a_handler_has_forked_does_not_go_on_as_the_job(fleet: Fleet) -> None:
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("a", "fork")
        assert eventually(lambda: len(set(fleet.noted("a", "done"))) == 2), "the handler waits for the end of its copy"
        assert eventually(lambda: fleet.stands("a", "queued", "eval")), worker.says()
        assert "retire" not in worker.asked
