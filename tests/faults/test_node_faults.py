"""F11, F29, and what else befalls a whole node: its loss, a pause, a return under its name, a drain, a wrong clock."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e_service import children, eventually
from fault_jobs import nap_job, steps_job, wait_job
from fault_service import WITHIN_S, FaultService, boots_of, second_node, send, stopped

STEPS = [f"sleep 0.3; echo {n} >> steps" for n in range(1, 6)]


def submit_to_second(service: FaultService, jobs: list[dict[str, object]]) -> list[str]:
    """Submit jobs that are begun on the second node: the init processes of the first are held for so long."""
    with stopped(*service.stage_children("init")):
        ids = service.submit(jobs)
        assert eventually(lambda: all(service.record(i)["stage"] != "init" for i in ids), WITHIN_S), service.told(ids)
    return ids


@pytest.mark.slow
def test_the_jobs_of_a_node_that_is_lost_start_over_elsewhere(service: FaultService) -> None:
    with second_node(service) as node:
        ids = submit_to_second(service, [steps_job(*STEPS, steps=5, job_id=f"lost-{n}") for n in range(3)])
        service.await_turns(ids, 1)
        node.kill()
        node.wait(30)
        assert service.states(ids) == {"completed": 3}, service.told(ids)
    for job_id in ids:
        assert service.client.result(job_id).reward == 1.0
        assert service.client.status(job_id).attempt == 1, "lost with its neighbours"
        assert service.client.status(job_id).node != "n2"
    assert service.store.counters()["started_over"] >= 3


def test_f11_a_node_that_returns_under_its_name_leaves_nothing_of_its_earlier_life(service: FaultService) -> None:
    with second_node(service) as node:
        ids = submit_to_second(service, [nap_job(2, job_id=f"f11-{n}") for n in range(3)])
        service.await_stage(ids, "rollout")
        boots = boots_of(service, "n2")
        node.kill()
        node.wait(30)
    with second_node(service):
        assert service.states(ids) == {"completed": 3}, service.told(ids)
        assert eventually(lambda: not queues_of(service, boots), WITHIN_S), queues_of(service, boots)


@pytest.mark.slow
def test_f29_the_messages_of_a_dead_nodes_queue_are_sent_elsewhere(service: FaultService) -> None:
    with second_node(service, rollout=1) as node:
        ids = submit_to_second(service, [nap_job(3, job_id=f"f29-{n}") for n in range(4)])
        boots = boots_of(service, "n2")
        waiting = [i for i in ids if service.client.status(i).state == "queued"]
        assert len(waiting) >= 2
        assert {service.record(i)["queue"].split(".")[:2] == ["rollout", "n2"] for i in waiting} == {True}
        assert queues_of(service, boots)
        node.kill()
        node.wait(30)
        assert service.states(ids) == {"completed": 4}, service.told(ids)
    assert eventually(lambda: not queues_of(service, boots), WITHIN_S), queues_of(service, boots)


def queues_of(service: FaultService, boots: set[str]) -> list[str]:
    """The broker's lists and our queues that belong to these starts of a keeper."""
    lists = [key.decode(errors="replace") for boot in boots for key in service.redis.keys(f"*.{boot}*")]
    ours = [queue.decode() for queue in service.redis.smembers("prorl:queues")]
    return lists + [queue for queue in ours if queue.rpartition(".")[2] in boots]


@pytest.mark.slow
def test_a_node_that_stood_still_for_longer_than_its_lease_is_fenced_out(service: FaultService) -> None:
    with second_node(service) as node:
        ids = submit_to_second(service, [nap_job(2, job_id=f"still-{n}") for n in range(3)])
        service.await_stage(ids, "rollout")
        with stopped(node.pid, *(pid for pid, _ in children(node.pid))):
            assert service.states(ids) == {"completed": 3}, service.told(ids)
        assert {service.client.status(i).node for i in ids} != {"n2"}
        assert eventually(lambda: boots_of(service, "n2"), WITHIN_S), "it is back"
        more = submit_to_second(service, [nap_job(0, job_id=f"still-{n}-more") for n in range(2)])
        assert service.states(more) == {"completed": 2}


@pytest.mark.slow
def test_a_drained_node_takes_nothing_new_and_lets_its_jobs_finish(service: FaultService) -> None:
    with second_node(service):
        ids = submit_to_second(service, [nap_job(3, job_id=f"drained-{n}") for n in range(3)])
        service.client.drain("n2")
        assert eventually(lambda: all(p["draining"] for p in node_record(service, "n2")["processes"]), WITHIN_S)
        more = service.submit([nap_job(0, job_id=f"drained-{n}-later") for n in range(8)])
        assert service.states([*ids, *more]) == {"completed": 11}, service.told(ids)
        assert [event.what for i in ids for event in service.store.events(i)].count("running rollout") == len(ids)
        assert {service.client.status(i).node for i in more} == {service.settings.node}
        assert eventually(lambda: node_record(service, "n2").get("drained"), WITHIN_S), node_record(service, "n2")
        service.client.drain("n2", undo=True)
        back = submit_to_second(service, [nap_job(0, job_id="drained-back")])
        assert service.states(back) == {"completed": 1}


def node_record(service: FaultService, name: str) -> dict[str, Any]:
    return next(record for record in service.client.nodes() if record["node"] == name)


@pytest.mark.slow
def test_a_node_that_is_told_to_stop_ends_by_its_deadline_and_its_jobs_go_on(service: FaultService) -> None:
    """Row 3 of the complaints: a final drain that hangs."""
    with second_node(service) as node:
        ids = submit_to_second(service, [nap_job(600, job_id=f"final-{n}") for n in range(3)])
        service.await_stage(ids, "rollout")
        node.send_signal(signal.SIGTERM)
        assert node.wait(WITHIN_S) == 0
        assert eventually(lambda: all(service.client.status(i).node != "n2" for i in ids), WITHIN_S), service.told(ids)
        for job_id in ids:
            assert service.client.status(job_id).attempt == 1
            service.client.cancel(job_id)
        assert service.states(ids) == {"cancelled": 3}


@pytest.mark.slow
@pytest.mark.parametrize("days", [2, -2])
def test_a_node_whose_clock_jumps_by_days_changes_nothing(service: FaultService, tmp_path: Path, days: int) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    with ExitStack() as stack:
        node = stack.enter_context(second_node(service, FAULT_CLOCK=str(clock)))
        running = submit_to_second(service, [steps_job(*STEPS, steps=5, job_id=f"clock{days}-{n}") for n in range(3)])
        service.await_turns(running, 1)
        clock.write_text(str(days * 86400))
        # It alone sweeps from now on, by a clock that is wrong.
        stack.enter_context(stopped(service.child("upkeep")))
        after = submit_to_second(service, [wait_job("rollout", 1.0, job_id=f"clock{days}-{n}-after") for n in range(2)])
        [upkeep] = [pid for pid, comm in children(node.pid) if comm == "prorl-upkeep"]
        assert eventually(lambda: leads(service, "n2"), WITHIN_S), upkeep
        for pid in [pid for pid, comm in children(node.pid) if comm == "prorl-rollout-0"]:
            send(pid, signal.SIGKILL)
        assert service.states([*running, *after]) == {"completed": 5}, service.told([*running, *after])
        for job_id in running:
            assert service.client.result(job_id).reward == 1.0
        statuses = [service.client.status(i) for i in (*running, *after)]
        assert {status.attempt for status in statuses} == {1}
        assert all(0 <= timing.running < WITHIN_S for status in statuses for timing in status.timing.values())
        assert eventually(lambda: boots_of(service, "n2"), WITHIN_S)


def leads(service: FaultService, node: str) -> bool:
    """Whether the sweeping process is one of that node."""
    leader = service.redis.get("prorl:leader")
    return leader is not None and leader.decode().startswith(f"{node}.")
