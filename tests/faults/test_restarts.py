"""F9, F10, and rollouts that outlive their workers: processes that are told to stop, replaced, or killed under load."""

from __future__ import annotations

import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from backend_calls import calls_of, finished_twice
from e2e_service import eventually
from fault_jobs import steps_job, wait_job
from fault_service import WITHIN_S, FaultService, await_end, commands_like, hurt_service, send

from prorl_celery.jobs.models import Stage
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.testing import ScriptedBackend

STEPS = [f"sleep 0.1; echo {n} >> steps" for n in range(1, 7)]
FULL = 8
"""Jobs that fill the rollout slots: no process then holds one alone."""


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["init", "rollout", "eval"])
def test_f09_a_busy_stage_told_to_stop_and_killed_in_its_drain_loses_no_job(
    service: FaultService, stage: Stage
) -> None:
    ids = service.submit([wait_job(stage, 4.0, job_id=f"f09-{stage}-{n}") for n in range(FULL)])
    slots = FULL if stage == "rollout" else 4
    assert eventually(lambda: sum(service.in_stage([i], stage) for i in ids) == slots, WITHIN_S), service.told(ids)
    told = service.stage_children(stage)
    for pid in told:
        send(pid, signal.SIGTERM)
    for pid in told:
        assert not await_end(pid, 0.3), "it drains"
        send(pid, signal.SIGKILL)
    assert service.states(ids) == {"completed": FULL}, service.told(ids)
    assert {service.client.status(i).attempt for i in ids} == {1}


def test_f09_a_stage_that_is_told_to_stop_hands_back_what_it_cannot_finish(service: FaultService) -> None:
    ids = service.submit([steps_job("echo 1 >> steps", "sleep 6", steps=1, job_id=f"back-{n}") for n in range(4)])
    service.await_turns(ids, 2)
    sandboxes = {one["sandbox_id"] for one in KeeperClient(service.settings).list()}
    told = service.stage_children("rollout")
    for pid in told:
        send(pid, signal.SIGTERM)
    assert all(await_end(pid) for pid in told)
    assert {one["sandbox_id"] for one in KeeperClient(service.settings).list()} == sandboxes
    assert service.states(ids) == {"completed": 4}, service.told(ids)
    for job_id in ids:
        result = service.client.result(job_id)
        assert (result.reward, result.attempt) == (1.0, 1), (result.artifacts, service.told([job_id]))
        assert int(service.record(job_id).get("lost_total", 0)) == 0


def test_f10_a_rolling_restart_under_load_loses_nothing_and_redoes_no_turn(
    service: FaultService, backend: ScriptedBackend
) -> None:
    ids = service.submit([steps_job(*STEPS, steps=6, job_id=f"f10-{n}") for n in range(3 * FULL)])
    service.await_turns(ids[:FULL], 1)
    stages = {name: set(service.stage_children(name)) for name in ("init", "rollout", "eval")}
    keeper = service.keeper()["pid"]
    service.process.send_signal(signal.SIGUSR1)
    for name, before in stages.items():
        assert eventually(lambda before=before, name=name: is_replaced(service, name, before), WITHIN_S), service.logs()
    assert service.states(ids) == {"completed": len(ids)}, service.told(ids)
    assert service.keeper()["pid"] == keeper, "its sandboxes, and it, are kept"
    for job_id in ids:
        result = service.client.result(job_id)
        assert (result.reward, result.attempt) == (1.0, 1), (result.artifacts, service.told([job_id]))
    assert sum(int(service.record(i).get("lost_total", 0)) for i in ids) == 0, "handed back, not lost"
    assert finished_twice(backend, ids) == {}
    assert service.process.poll() is None


def is_replaced(service: FaultService, stage: str, before: set[int]) -> bool:
    """Whether none of a stage's earlier processes is there, and as many others are."""
    now = set(service.stage_children(stage))
    return len(now) == len(before) and not now & before


def test_a_rollout_killed_in_mid_command_goes_on_in_the_same_shell(
    service: FaultService, backend: ScriptedBackend
) -> None:
    commands = [
        "echo 1 >> steps; export HELD=here",
        "echo early; echo 2 >> steps; sleep 4.0625; echo 3 >> steps; echo late",
        "echo $HELD",
    ]
    ids = service.submit([steps_job(*commands, steps=3, job_id=f"command-{n}") for n in range(FULL)])
    assert eventually(lambda: commands_like("sleep", "4.0625") == FULL, WITHIN_S), service.told(ids)
    sandboxes = {one["sandbox_id"] for one in KeeperClient(service.settings).list()}
    service.kill_stage("rollout")
    assert service.states(ids) == {"completed": FULL}, service.told(ids)
    for job_id in ids:
        result = service.client.result(job_id)
        assert (result.reward, result.attempt) == (1.0, 1), (result.artifacts, service.told([job_id]))
        tools = [str(message["content"]) for message in result.messages if message["role"] == "tool"]
        assert "here" in tools[2], "the shell is the same, with what was exported in it"
        assert "late" in tools[1], "the command ended, and was waited for"
        assert "early" in tools[1] or "replaced" in tools[1], "what the dead process had read is missing: so it is said"
        assert len(result.segments) == 1, "the ids of the rest continue the first"
    assert finished_twice(backend, ids) == {}
    assert len(sandboxes) >= FULL
    assert service.store.counters()["went_on"] >= FULL


def test_a_rollout_killed_in_mid_call_makes_that_call_again_and_no_other(
    service: FaultService, backend: ScriptedBackend
) -> None:
    ids = service.submit([steps_job(*STEPS, steps=6, job_id=f"call-{n}") for n in range(FULL)])
    service.await_turns(ids, 1)
    backend.fail("slow", count=FULL, seconds=5.0)
    assert eventually(lambda: backend.stats()["live"] == FULL, WITHIN_S), backend.stats()
    service.kill_stage("rollout")
    assert service.states(ids) == {"completed": FULL}, service.told(ids)
    for job_id in ids:
        result = service.client.result(job_id)
        assert (result.reward, result.attempt, len(result.turns)) == (1.0, 1, 7), service.told([job_id])
        calls = calls_of(backend, job_id)
        asked = Counter(call.turn for call in calls)
        assert sorted(asked.values()) == [1] * 6 + [2], "one turn was in flight, and is asked for again"
        done = [call for call in calls if call.finished]
        for earlier, later in pairwise(done):
            assert later.prompt[: len(earlier.prompt) + len(earlier.sampled)] == earlier.prompt + earlier.sampled


def test_a_keeper_that_is_killed_takes_its_sandboxes_and_no_job(service: FaultService) -> None:
    ids = service.submit([steps_job(*STEPS, steps=6, job_id=f"keeper-{n}") for n in range(FULL)])
    service.await_turns(ids, 1)
    send(service.keeper()["pid"], signal.SIGKILL)
    assert service.states(ids) == {"completed": FULL}, service.told(ids)
    for job_id in ids:
        result = service.client.result(job_id)
        assert (result.reward, result.attempt) == (1.0, 1), "no fault of the job"
        assert len(result.turns) == len(STEPS) + 1, "what was done in the lost sandbox is not in the result"


@pytest.mark.slow
def test_jobs_outlive_the_whole_service(tmp_path: Path) -> None:
    with hurt_service(tmp_path) as first:
        ids = first.submit([wait_job("rollout", 2.0, job_id=f"again-{n}") for n in range(4)])
        first.await_stage(ids, "rollout")
        first.process.kill()
        first.process.wait(30)
    with hurt_service(tmp_path) as second:
        second.submitted = ids
        assert second.states(ids) == {"completed": 4}, second.told(ids)
        second.assert_sound()


def test_every_process_but_redis_killed_at_once_loses_nothing(service: FaultService) -> None:
    ids = service.submit([wait_job("rollout", 2.0, job_id=f"all-{n}") for n in range(FULL)])
    service.await_stage(ids, "rollout")
    for stage in ("init", "rollout", "eval"):
        service.kill_stage(stage)
    for pid in (service.child("upkeep"), service.child("api"), service.keeper()["pid"]):
        send(pid, signal.SIGKILL)
    assert eventually(lambda: service.pids("api"), WITHIN_S)
    assert service.states(ids) == {"completed": FULL}, service.told(ids)
