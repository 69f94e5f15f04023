"""What users of such services complain of, as tests; the rows are those of the list that this service is built by.

Row 2 (a killed worker, an orchestrator that waits for ever) is F1 to F3, row 3 (a drain that hangs) is among the nodes'
faults, row 19 (memory) and 20 (limits) are among the bounds.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from e2e_service import eventually
from fault_jobs import hurt_job, nap_job, wait_job
from fault_service import WITHIN_S, FaultService, await_end, hurt_service, stopped

from prorl_celery.errors import SandboxError
from prorl_celery.jobs.models import Stage
from prorl_celery.sandbox.client import KeeperClient


def test_row_1_a_frozen_rollout_of_a_group_holds_up_nobody(service: FaultService) -> None:
    group = {"tags": {"group": "row-1"}}
    ids = service.submit(
        [
            hurt_job("row-1-frozen", "block", seconds=20.0, timeouts={"rollout": 1.0}, max_attempts=1, **group),
            *(wait_job("rollout", 0.5, job_id=f"row-1-{n}", **group) for n in range(3)),
        ]
    )
    ended = [result.job_id for result in _results(service, "group=row-1", 4)]
    assert sorted(ended) == sorted(ids), "a waiter for the group has all of it"
    assert service.client.status(ids[0]).state == "timed_out", service.told(ids[:1])


def _results(service: FaultService, tag: str, count: int) -> list[object]:
    found = []
    for result in service.client.results(tag=tag, timeout=WITHIN_S):
        found.append(result)
        if len(found) == count:
            break
    return found


def test_row_4_one_rollout_that_raises_costs_no_other(service: FaultService) -> None:
    jobs = [wait_job(job_id=f"row-4-{n}") for n in range(63)]
    ids = service.submit([*jobs[:30], hurt_job("row-4-bad", "raise", max_attempts=1), *jobs[30:]])
    assert service.states(ids) == {"completed": 63, "failed": 1}
    error = service.client.result("row-4-bad").error
    assert error is not None
    assert (error.kind, error.stage) == ("handler", "rollout")


def test_row_18_the_states_add_up_to_what_was_submitted_at_all_times(service: FaultService) -> None:
    states = ("queued", "running", "completed", "failed", "cancelled", "timed_out")

    def total() -> int:
        jobs = service.client.service_status()["jobs"]
        return sum(jobs[state] for state in states)

    before, wrong, over = total(), [], threading.Event()
    ids = service.submit([wait_job("rollout", 0.3, job_id=f"row-18-{n}") for n in range(60)])

    def watch() -> None:
        while not over.wait(0.02):
            if (seen := total() - before) != len(ids):
                wrong.append(seen)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for stage in ("rollout", "eval", "init"):
            assert eventually(lambda: service.client.service_status()["stages"]["rollout"]["busy"] > 0, WITHIN_S)
            service.kill_stage(stage)
        for job_id in ids[-5:]:
            service.client.cancel(job_id)
        assert set(service.states(ids)) <= {"completed", "cancelled"}
    finally:
        over.set()
        watcher.join()
    assert wrong == []


def listed(service: FaultService) -> list[dict[str, Any]]:
    """The sandboxes there are; none where the keeper is too busy to say."""
    with suppress(SandboxError):
        return KeeperClient(service.settings).list()
    return []


def test_row_25_sandboxes_that_fail_are_no_rewards_of_zero(service: FaultService) -> None:
    ids = service.submit([nap_job(1.0, job_id=f"row-25-{n}") for n in range(16)])
    once = service.submit([nap_job(1.0, job_id=f"row-25-{n}-once", max_attempts=1) for n in range(4)])
    killed: Counter[str] = Counter()

    def kill_some() -> bool:
        for one in listed(service):
            job_id = one["job_id"]
            if job_id.startswith("row-25-") and job_id[-1] in "37e" and not killed[job_id]:
                with suppress(ProcessLookupError, TypeError):  # or it is only just being started
                    os.kill(one["pid"], signal.SIGKILL)
                    killed[job_id] += 1
        return len(killed) >= 5

    assert eventually(kill_some, WITHIN_S), killed
    assert service.states(ids) == {"completed": 16}, service.told(ids)
    assert {service.client.result(i).reward for i in ids} == {1.0}
    service.states(once)
    results = [service.client.result(i) for i in once]
    failed = [result for result in results if result.state == "failed"]
    assert failed, killed
    assert {(result.reward, result.error and result.error.kind) for result in failed} == {(None, "sandbox")}
    counters = service.store.counters()
    assert sum(count for name, count in counters.items() if name.startswith("retries:sandbox:")) >= 1, counters


@pytest.mark.parametrize("stage", ["init", "rollout", "eval"])
def test_row_28_a_stage_that_hangs_is_the_one_that_is_named(service: FaultService, stage: Stage) -> None:
    [job_id] = service.submit([wait_job(stage, 600.0, job_id=f"row-28-{stage}", timeouts={stage: 1.0})])
    status = service.client.wait(job_id, timeout=WITHIN_S)
    assert status.state == "timed_out", service.told([job_id])
    assert status.error is not None
    assert (status.error.kind, status.error.stage) == ("timeout", stage)
    assert service.client.result(job_id).reward is None


@pytest.mark.slow
def test_row_28_a_keeper_that_hangs_is_replaced_and_the_sandbox_is_made_after_all(tmp_path: Path) -> None:
    with hurt_service(tmp_path, PRORL_SILENCE="12") as service:
        held = service.keeper()["pid"]
        with stopped(held):
            [job_id] = service.submit([nap_job(0, job_id="row-28-creating")])
            assert await_end(held), service.logs()
        assert service.states([job_id]) == {"completed": 1}, service.told([job_id])
        assert service.client.status(job_id).attempt == 1
        service.assert_sound()


def test_row_28_a_lost_eval_is_repeated_alone(service: FaultService) -> None:
    ids = service.submit([wait_job("eval", 3.0, job_id=f"row-28-near-{n}") for n in range(3)])
    service.await_stage(ids, "eval")
    [bad] = service.submit([hurt_job("row-28-lost", "once-die", stage="eval")])
    assert service.states([bad, *ids]) == {"completed": 4}, service.told([bad])
    begun = {stage: len((service.marks / f"{bad}.{stage}").read_text().splitlines()) for stage in ("init", "rollout")}
    assert begun == {"init": 1, "rollout": 1}
    assert len((service.marks / f"{bad}.eval").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "stage", ["rollout", *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("init", "eval"))]
)
def test_row_29_a_job_that_stands_still_says_where(service: FaultService, stage: Stage) -> None:
    [job_id] = service.submit([hurt_job(f"row-29-{stage}", "block", stage=stage, seconds=6.0)])
    service.await_stage([job_id], stage)
    assert eventually(lambda: service.client.status(job_id).stalled, WITHIN_S), service.told([job_id])
    stalled = service.client.status(job_id).stalled
    assert stalled is not None
    assert (stalled.stage, stalled.node) == (stage, service.settings.node)
    assert stalled.thread
    assert stalled.act
    assert stalled.seconds >= 1.0
    assert job_id in service.store.stalled()
    assert service.states([job_id]) == {"completed": 1}, "it was seen before its deadline, and went on"
    assert service.client.status(job_id).stalled is None
    assert job_id not in service.store.stalled()
