"""F27: a job that kills its worker every time ends as a dead letter, and hurts its neighbours twice at most."""

from __future__ import annotations

import pytest
from e2e_service import eventually
from fault_jobs import hurt_job, wait_job
from fault_service import WITHIN_S, FaultService

from prorl_celery.jobs.models import Stage


@pytest.mark.parametrize(
    "stage", ["rollout", *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("init", "eval"))]
)
def test_f27_a_poison_job_is_a_dead_letter_after_its_attempts_and_its_neighbours_end_well(
    service: FaultService, stage: Stage
) -> None:
    # Slots enough for all at once: then the poison never runs alone before it is suspected.
    slots = 8 if stage == "rollout" else 4
    near = service.submit([wait_job(stage, 4.0, job_id=f"near-{stage}-{n}") for n in range(slots - 1)])
    service.await_stage(near, stage)
    [poison] = service.submit([hurt_job(f"f27-{stage}", "die", stage=stage, max_attempts=2)])
    status = service.client.wait(poison, timeout=2 * WITHIN_S)
    assert (status.state, status.attempt) == ("failed", 2), service.told([poison])
    assert status.error is not None
    assert (status.error.kind, status.error.stage, status.error.retryable) == ("lost_worker", stage, True)
    assert service.states(near) == {"completed": len(near)}, service.told(near)
    for job_id in near:
        assert service.client.status(job_id).attempt == 1, "a neighbour is not charged"
        assert int(service.record(job_id).get("lost_total", 0)) <= 2, "two losses together, and it ran apart"
    deaths = (service.marks / f"{poison}.{stage}").read_text().splitlines()
    assert 3 <= len(deaths) <= 4, deaths
    assert poison in [letter.job_id for letter in service.store.dead().statuses]
    assert service.client.result(poison).reward is None


@pytest.mark.slow
def test_f27_a_dead_letter_that_is_retried_has_a_new_life(service: FaultService) -> None:
    [poison] = service.submit([hurt_job("f27-retried", "die", max_attempts=1)])
    assert service.client.wait(poison, timeout=2 * WITHIN_S).state == "failed", service.told([poison])
    assert eventually(lambda: poison in [letter.job_id for letter in service.store.dead().statuses], WITHIN_S)
    before = len((service.marks / f"{poison}.rollout").read_text().splitlines())
    status = service.client.retry(poison)
    assert status.state in ("queued", "running")
    assert service.client.wait(poison, timeout=2 * WITHIN_S).state == "failed"
    assert len((service.marks / f"{poison}.rollout").read_text().splitlines()) > before
    assert [letter.job_id for letter in service.store.dead().statuses].count(poison) == 1


def test_a_job_that_fails_every_time_ends_after_its_attempts(service: FaultService) -> None:
    [job_id] = service.submit([hurt_job("raises", "raise", max_attempts=2)])
    status = service.client.wait(job_id, timeout=WITHIN_S)
    assert status.state == "failed"
    assert status.error is not None
    assert (status.error.kind, status.error.stage) == ("handler", "rollout")
    assert service.client.result(job_id).reward is None


def test_a_result_that_is_too_large_is_a_typed_failure_that_names_the_limit(service: FaultService) -> None:
    [job_id] = service.submit([hurt_job("large", "large", seconds=8 << 20, max_attempts=1)])
    status = service.client.wait(job_id, timeout=2 * WITHIN_S)
    assert status.state == "failed", service.told([job_id])
    assert status.error is not None
    assert str(service.settings.max_blob_bytes) in status.error.message
