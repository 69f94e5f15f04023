"""What waits: init for a place among the sandboxes, rollout for a backend. Waiting is charged to no stage."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e_service import eventually, running
from test_pipeline import code_job

from prorl_celery.testing import ScriptedBackend

pytestmark = pytest.mark.e2e


def test_init_runs_ahead_of_rollout_by_so_many_sandboxes_and_no_more(tmp_path: Path) -> None:
    slots = ("--rollout", "2", "--init", "4")
    with ScriptedBackend(policy="solve", oracle="human-eval", latency="0.5") as backend:
        with running(tmp_path / "data", *slots, PRORL_INIT_AHEAD="1", PRORL_ROLLOUT_PROCESSES="1") as service:
            service.add_backend(backend)
            jobs = service.client.submit([code_job(n) for n in range(8)])
            most = 0

            def all_ended() -> bool:
                nonlocal most
                most = max(most, service.keeper()["rollout_live"])
                return all(service.client.status(job.job_id).state == "completed" for job in jobs)

            assert eventually(all_ended, 90), service.logs()
            assert most == 3
            timing = service.client.status(jobs[-1].job_id).timing
            assert timing["init"].queued > timing["init"].running


def test_a_job_waits_for_a_backend_uncharged_and_then_runs(tmp_path: Path) -> None:
    with running(tmp_path / "data") as service:
        job = service.client.submit(code_job(3, timeouts={"rollout": 20}))
        assert eventually(lambda: service.client.status(job.job_id).stage == "rollout", 30)
        assert not eventually(lambda: service.client.status(job.job_id).state == "completed", 3)
        assert any("backend" in text for text in service.client.service_status()["missing"])
        with ScriptedBackend(policy="solve", oracle="human-eval") as backend:
            service.add_backend(backend)
            assert service.client.wait(job.job_id, timeout=30).state == "completed", service.logs()
        timing = service.client.status(job.job_id).timing["rollout"]
        assert timing.queued > 2.5
        assert timing.running < timing.queued + 5


def test_no_backend_within_the_wait_is_an_error_of_that_kind(tmp_path: Path) -> None:
    with running(tmp_path / "data", PRORL_BACKEND_WAIT="1") as service:
        job = service.client.submit(code_job(4, max_attempts=1))
        status = service.client.wait(job.job_id, timeout=60)
        assert status.state == "failed"
        assert status.error is not None
        assert (status.error.kind, status.error.stage, status.error.retryable) == ("backend", "rollout", True)


def test_a_backend_whose_tokenizer_vanished_fails_the_job_and_names_it(tmp_path: Path) -> None:
    with ScriptedBackend(policy="solve", oracle="human-eval") as backend, running(tmp_path / "data") as service:
        tokenizer = tmp_path / "tokenizer"
        tokenizer.mkdir()
        for file in Path(backend.tokenizer_dir).iterdir():
            (tokenizer / file.name).write_bytes(file.read_bytes())
        service.add_backend(backend, tokenizer=str(tokenizer))
        for file in tokenizer.iterdir():
            file.unlink()
        job = service.client.submit(code_job(5, max_attempts=1))
        status = service.client.wait(job.job_id, timeout=60)
        assert status.state == "failed"
        assert status.error is not None
        assert status.error.kind == "backend"
        assert str(tokenizer) in status.error.message
