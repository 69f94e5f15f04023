"""F30 to F32: cancels anywhere, of many at once, and against a commit."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2e_service import eventually
from fault_jobs import hurt_job, nap_job, steps_job, wait_job
from fault_service import WITHIN_S, FaultService, second_node, stopped

from prorl_celery.testing import ScriptedBackend

TOLD_S = 10.0
"""A cancel takes effect within two seconds; on a machine that does much else, within these."""


def cancel(service: FaultService, job_id: str) -> float:
    """Cancel a job and wait until it has ended; how long that took."""
    began = time.monotonic()
    service.client.cancel(job_id)
    status = service.client.wait(job_id, timeout=WITHIN_S)
    assert status.state == "cancelled", service.told([job_id])
    return time.monotonic() - began


@pytest.mark.parametrize("stage", ["init", "rollout", "eval"])
def test_f30_a_job_is_cancelled_in_each_stage(service: FaultService, stage: str) -> None:
    [job_id] = service.submit([wait_job(stage, 600.0, job_id=f"f30-{stage}")])
    service.await_stage([job_id], stage)  # type: ignore[arg-type]
    assert cancel(service, job_id) < TOLD_S
    assert service.client.status(job_id).stage == stage


def test_f30_a_job_is_cancelled_in_its_queue_and_never_begins(service: FaultService) -> None:
    with stopped(*service.stage_children("init")):
        [job_id] = service.submit([hurt_job("f30-queued", "nothing", stage="never")])
        assert cancel(service, job_id) < TOLD_S
    [other] = service.submit([wait_job(job_id="f30-behind")])
    assert service.states([other]) == {"completed": 1}
    assert not (service.marks / f"{job_id}.init").exists()


def test_f30_a_job_is_cancelled_in_a_command_a_model_call_and_a_wait_for_a_backend(
    service: FaultService, backend: ScriptedBackend
) -> None:
    backend.fail("slow", count=1, seconds=300.0)
    [call] = service.submit([steps_job("echo 1 >> steps", steps=1, job_id="f30-call")])
    assert eventually(lambda: backend.stats()["live"] == 1, WITHIN_S)
    sampling = {"model": "scripted-nobody"}
    ids = service.submit(
        [nap_job(600, job_id="f30-command"), steps_job("x", steps=1, job_id="f30-wait") | {"sampling_params": sampling}]
    )
    service.await_stage([call, *ids], "rollout")
    for job_id in (call, *ids):
        assert cancel(service, job_id) < TOLD_S
    assert backend.wait_until(live=0)


def test_f30_a_job_that_is_done_stays_as_it_ended(service: FaultService) -> None:
    [job_id] = service.submit([wait_job(job_id="f30-done")])
    assert service.states([job_id]) == {"completed": 1}
    before = service.record(job_id)
    assert service.client.cancel(job_id).state == "completed"
    assert service.record(job_id) == before


def test_f30_a_cancel_whose_message_was_missed_is_in_the_next_heartbeat(service: FaultService) -> None:
    [job_id] = service.submit([wait_job("rollout", 600.0, job_id="f30-missed")])
    service.await_stage([job_id], "rollout")
    holder = service.holder(job_id)
    with stopped(holder):  # its listener hears nothing, and its connection to the channel is cut meanwhile
        service.client.cancel(job_id)
        for one in service.redis.client_list(_type="pubsub"):
            service.redis.client_kill_filter(_id=one["id"])
    assert service.client.wait(job_id, timeout=WITHIN_S).state == "cancelled"


@pytest.mark.slow
def test_f31_two_hundred_jobs_in_flight_stop_together_and_none_begins_later(service: FaultService) -> None:
    with second_node(service, "many", rollout=200):
        ids = service.submit([hurt_job(f"f31-{n}", "wait") for n in range(260)])
        in_flight = lambda: service.client.service_status()["stages"]["rollout"]["busy"]  # noqa: E731
        assert eventually(lambda: in_flight() >= 200, WITHIN_S), in_flight()
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(service.client.cancel, ids))
        assert service.states(ids) == {"cancelled": 260}
        print(f"260 jobs, 200 of them in flight, were cancelled within {time.monotonic() - began:.1f} s")
        begun = {path.name for path in service.marks.glob("f31-*")}
    with second_node(service, "late"):
        assert service.states(service.submit([wait_job(job_id=f"f31-late-{n}") for n in range(8)])) == {"completed": 8}
        assert {path.name for path in service.marks.glob("f31-*")} == begun


def test_f32_of_a_cancel_and_a_commit_that_meet_exactly_one_wins(service: FaultService) -> None:
    rng = random.Random(32)
    began = time.monotonic()
    for n in range(5):
        assert service.states(service.submit([wait_job("rollout", 0.02, job_id=f"f32-alone-{n}")])) == {"completed": 1}
    usual = (time.monotonic() - began) / 5
    ids = [f"f32-{n}" for n in range(80)]
    timers = []
    for job_id in ids:
        service.submit([wait_job("rollout", 0.02, job_id=job_id)])
        timers.append(threading.Timer(rng.uniform(0.0, 2 * usual), service.client.cancel, [job_id]))
        timers[-1].start()
        timers[-1].join(usual / 2)  # else they would wait for each other
    for timer in timers:
        timer.join(WITHIN_S)
    states = service.states(ids)
    assert set(states) <= {"completed", "cancelled"}, service.told(ids[:3])
    told = Counter(service.client.result(i).state == service.client.status(i).state for i in ids)
    assert told == {True: 80}
    print(f"of 80 races: {dict(states)}")
    assert len(states) == 2, "both came to pass"
