"""`kill -9` of each worker in each stage: every job still ends, once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e_service import Service, eventually, running
from test_pipeline import code_job

from prorl_celery.testing import ScriptedBackend

pytestmark = pytest.mark.e2e

QUICK = {
    "PRORL_LEASE": "3",
    "PRORL_HEARTBEAT": "1",
    "PRORL_SWEEP": "0.5",
    "PRORL_REPUBLISH_AFTER": "3",
    "PRORL_DRAIN": "1",
    "PRORL_HANDLERS": "prorl_celery.bench.handlers:WaitHandler",
}


def wait_job(stage: str, seconds: float, **fields: Any) -> dict[str, Any]:
    times = {f"{name}_s": seconds if name == stage else 0.0 for name in ("init", "rollout", "eval")}
    return {"instance": {"data_source": "wait", **times}, **fields}


@pytest.mark.parametrize("stage", ["init", "rollout", "eval"])
def test_a_worker_killed_in_its_stage_loses_no_job(tmp_path: Path, stage: str) -> None:
    with running(tmp_path / "data", **QUICK) as service:
        jobs = service.client.submit([wait_job(stage, 4.0, job_id=f"{stage}-{n}") for n in range(3)])
        ids = [job.job_id for job in jobs]
        assert eventually(lambda: all(_running(service, i, stage) for i in ids), 30), service.logs()
        for pid in service.pids(f"{stage}-"):
            with contextlib.suppress(ProcessLookupError):  # a stage's children die with it, and are of its name
                os.kill(pid, signal.SIGKILL)
        states = Counter(service.client.wait(i, timeout=60).state for i in ids)
        assert states == {"completed": 3}, service.logs()
        ended = Counter(result.job_id for result in service.client.results_page(limit=100).results)
        assert ended == dict.fromkeys(ids, 1)


def test_a_keeper_that_is_killed_takes_its_sandboxes_and_no_job(tmp_path: Path) -> None:
    with ScriptedBackend(policy="solve", oracle="human-eval", latency="1.0") as backend:
        with running(tmp_path / "data", **QUICK) as service:
            service.add_backend(backend)
            jobs = service.client.submit([code_job(n, job_id=f"keeper-{n}") for n in range(3)])
            assert eventually(lambda: all(service.client.status(j.job_id).turns >= 1 for j in jobs), 60)
            os.kill(service.keeper()["pid"], signal.SIGKILL)
            for job in jobs:
                status = service.client.wait(job.job_id, timeout=90)
                assert status.state == "completed", (status, service.logs())
            ended = Counter(result.job_id for result in service.client.results_page(limit=100).results)
            assert ended == {job.job_id: 1 for job in jobs}


def test_every_process_but_redis_killed_at_once_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data", **QUICK) as service:
        jobs = service.client.submit([wait_job("rollout", 2.0, job_id=f"all-{n}") for n in range(6)])
        assert eventually(lambda: _running(service, "all-0", "rollout"), 30)
        for name in ("init-", "rollout-", "eval-", "upkeep", "api"):
            for pid in service.pids(name):
                os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: bool(service.pids("api")), 30)
        for job in jobs:
            assert service.client.wait(job.job_id, timeout=90).state == "completed", service.logs()


def test_jobs_outlive_the_whole_service(tmp_path: Path) -> None:
    with running(tmp_path / "data", **QUICK) as service:
        service.client.submit([wait_job("rollout", 3.0, job_id=f"again-{n}") for n in range(4)])
        assert eventually(lambda: _running(service, "again-0", "rollout"), 30)
        service.process.kill()
        service.process.wait(30)
    with running(tmp_path / "data", **QUICK) as service:
        for n in range(4):
            assert service.client.wait(f"again-{n}", timeout=60).state == "completed", service.logs()


def test_a_job_that_fails_every_time_ends_after_its_attempts(tmp_path: Path) -> None:
    with ScriptedBackend(policy="solve", oracle="human-eval") as backend:
        with running(tmp_path / "data", **QUICK) as service:
            service.add_backend(backend)
            backend.fail("no_ids", count=1000)
            job = service.client.submit(code_job(0, max_attempts=2))
            status = service.client.wait(job.job_id, timeout=120)
            assert (status.state, status.attempt) == ("failed", 2)
            assert status.error is not None
            assert status.error.kind == "backend"
            assert service.client.result(job.job_id).reward is None


def _running(service: Service, job_id: str, stage: str) -> bool:
    status = service.client.status(job_id)
    return (status.state, status.stage) == ("running", stage)
