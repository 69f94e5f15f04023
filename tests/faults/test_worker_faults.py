"""F1 to F8 and F12: a worker process that is killed, stopped, or ill, in each stage."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from backend_calls import calls_of, finished_twice
from e2e_service import eventually
from fault_jobs import hurt_job, nap_job, steps_job, wait_job
from fault_service import WITHIN_S, FaultService, await_end, direct_children, send, stopped

from prorl_celery.testing import ScriptedBackend

STEPS = [f"sleep 0.1; echo {n} >> steps" for n in range(1, 7)]


@pytest.mark.parametrize(("fault", "stage"), [("f01", "init"), ("f03", "eval")])
def test_f01_f03_a_worker_killed_in_init_or_eval_loses_no_job(service: FaultService, fault: str, stage: str) -> None:
    ids = service.submit([wait_job(stage, 2.0, job_id=f"{fault}-{n}") for n in range(3)])
    service.await_stage(ids, stage)  # type: ignore[arg-type]
    service.kill_stage(stage)
    assert service.states(ids) == {"completed": 3}, service.told(ids)
    assert {service.client.status(i).attempt for i in ids} == {1}, "lost together with the process: nobody's fault"


def test_f02_a_worker_killed_in_mid_turn_loses_no_turn(service: FaultService, backend: ScriptedBackend) -> None:
    ids = service.submit([steps_job(*STEPS, steps=6, job_id=f"f02-{n}") for n in range(8)])  # all slots
    service.await_turns(ids, 2)
    service.kill_stage("rollout")
    assert service.states(ids) == {"completed": 8}, service.told(ids)
    for job_id in ids:
        result = service.client.result(job_id)
        assert (result.reward, result.attempt) == (1.0, 1), (result.artifacts, service.told([job_id]))
        assert len(result.turns) == len(STEPS) + 1
    assert finished_twice(backend, ids) == {}


def test_f04_a_worker_that_dies_between_commit_and_publish_loses_no_job(service: FaultService) -> None:
    ids = [f"f04.die-at-publish.{n}" for n in range(2)]
    for job_id in ids:  # one after the other: what is alone in init when the other's worker dies is charged
        service.submit([wait_job(job_id=job_id)])
        assert service.states([job_id]) == {"completed": 1}, service.told([job_id])
    assert sorted(path.name for path in service.marks.glob("f04*")) == [f"{i}.died-at-publish" for i in ids]
    assert {service.client.status(i).attempt for i in ids} == {1}


def test_f05_a_worker_that_dies_between_pop_and_claim_loses_no_job(service: FaultService) -> None:
    ids = service.submit([wait_job(job_id="f05.die-at-claim.0")])
    assert service.states(ids) == {"completed": 1}, service.told(ids)
    assert (service.marks / f"{ids[0]}.died-at-claim").exists()
    assert service.client.status(ids[0]).attempt == 1


@pytest.mark.parametrize("point", ["commit", "finish"])
def test_a_worker_that_dies_with_its_work_unwritten_has_it_done_again(service: FaultService, point: str) -> None:
    ids = service.submit([wait_job(job_id=f"unwritten.die-at-{point}.0")])
    assert service.states(ids) == {"completed": 1}, service.told(ids)
    assert (service.marks / f"{ids[0]}.died-at-{point}").exists()


def test_f06_a_killed_child_of_one_job_hurts_that_job_alone(service: FaultService) -> None:
    [bad] = service.submit([hurt_job("f06", "once-child", stage="eval", seconds=300)])
    good = service.submit([wait_job("eval", 3.0, job_id=f"f06-good-{n}") for n in range(2)])
    service.await_stage([bad, *good], "eval")
    holder = service.holder(bad)
    [nursery] = direct_children(holder)
    assert eventually(lambda: len(direct_children(nursery[0])) == 1, WITHIN_S), direct_children(nursery[0])
    send(direct_children(nursery[0])[0][0], signal.SIGKILL)
    assert service.states([bad, *good]) == {"completed": 3}, service.told([bad])
    assert [service.client.status(i).attempt for i in good] == [1, 1]
    assert service.client.status(bad).attempt == 1  # eval alone was repeated
    assert service.record(bad)["evals"] == "1"
    assert holder in service.stage_children("eval"), "the worker lives"


def test_f07_a_stage_that_ignores_every_signal_costs_its_slot_and_no_neighbour(service: FaultService) -> None:
    [deaf] = service.submit([hurt_job("f07", "block", timeouts={"rollout": 1.0}, max_attempts=1)])
    service.await_stage([deaf], "rollout")
    neighbours = service.submit([wait_job("rollout", 5.0, job_id=f"f07-near-{n}") for n in range(7)])
    service.await_stage(neighbours, "rollout")
    holder = service.holder(deaf)
    assert any(service.holder(one) == holder for one in neighbours)
    status = service.client.wait(deaf, timeout=WITHIN_S)
    assert (status.state, status.error and status.error.stage) == ("timed_out", "rollout"), service.told([deaf])
    assert service.states(neighbours) == {"completed": 7}, service.told(neighbours)
    assert {service.client.status(i).attempt for i in neighbours} == {1}
    assert {int(service.record(i).get("lost_total", 0)) for i in neighbours} == {0}, "they ended where they were"
    assert await_end(holder), "the process goes when its other jobs have ended"
    assert eventually(service.is_whole, WITHIN_S)


@pytest.mark.slow
def test_f07_a_worker_that_is_told_to_stop_with_a_deaf_stage_is_killed_in_the_end(service: FaultService) -> None:
    [deaf] = service.submit([hurt_job("f07-term", "once-spin", max_attempts=2)])
    service.await_stage([deaf], "rollout")
    holder = service.holder(deaf)
    send(holder, signal.SIGTERM)
    assert service.states([deaf]) == {"completed": 1}, service.told([deaf])
    assert await_end(holder)


def test_f08_a_worker_that_wakes_after_its_lease_is_fenced_out(service: FaultService, backend: ScriptedBackend) -> None:
    ids = service.submit([steps_job(*STEPS, steps=6, job_id=f"f08-{n}") for n in range(3)])
    service.await_turns(ids, 1)
    held = Counter(map(service.holder, ids))
    holder, count = held.most_common(1)[0]
    assert count >= 2, "a job that was lost alone would be charged"
    mine = [i for i in ids if service.holder(i) == holder]
    with stopped(holder):
        assert eventually(lambda: all(service.client.status(i).turns >= 4 for i in mine), WITHIN_S), service.told(mine)
    assert service.states(ids) == {"completed": 3}, service.told(ids)
    for job_id in ids:
        result = service.client.result(job_id)
        assert (result.reward, result.attempt) == (1.0, 1), (result.artifacts, service.told([job_id]))
        assert len(result.turns) == len(STEPS) + 1
        turns = [call.turn for call in calls_of(backend, job_id)]
        assert turns == sorted(turns), "nobody asked for a turn of the past"


def test_f12_a_command_that_eats_its_sandboxs_memory_ends_and_nothing_else(service: FaultService) -> None:
    eat = "python3 -c 'print(len(b\"x\" * (1 << 30)))'; echo died=$?; echo 1 >> steps"
    [hungry] = service.submit([steps_job(eat, steps=1, job_id="f12")])
    near = service.submit([nap_job(2, job_id=f"f12-near-{n}") for n in range(2)])
    before = set(service.stage_children("rollout"))
    assert service.states([hungry, *near]) == {"completed": 3}, service.told([hungry])
    said = "".join(str(message["content"]) for message in service.client.result(hungry).messages)
    assert str(1 << 30) not in said
    assert "died=" in said
    assert "died=0" not in said
    assert service.client.result(hungry).reward == 1.0
    assert set(service.stage_children("rollout")) == before
