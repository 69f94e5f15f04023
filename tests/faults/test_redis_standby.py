"""A Redis with a standby: the master is killed, Sentinel makes the replica the master, the service goes on by itself.

Replication is not waited for, so that what the master took in its last moment may be lost. Nothing of a job that was
accepted before is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from e2e_service import eventually
from fault_jobs import steps_job, wait_job
from fault_redis import Standby, standing_by
from fault_service import WITHIN_S, FaultService, hurt_service

from prorl_celery.client import ApiError
from prorl_celery.jobs.models import TERMINAL
from prorl_celery.testing import ScriptedBackend

STEPS = [f"echo {n} >> steps" for n in range(1, 6)]


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standby]:
    with standing_by(tmp_path_factory.mktemp("standby")) as standby:
        yield standby


@pytest.fixture(scope="module")
def hurt(
    tmp_path_factory: pytest.TempPathFactory, backend: ScriptedBackend, standby: Standby
) -> Iterator[FaultService]:
    with hurt_service(tmp_path_factory.mktemp("hurt"), PRORL_REDIS_URL=standby.url, PRORL_LEASE="6") as service:
        service.redis_url = standby.url
        service.add_backend(backend)
        yield service


def submit_in_the_end(service: FaultService, job_id: str) -> None:
    def accepted() -> bool:
        try:
            return bool(service.submit([wait_job(job_id=job_id)]))
        except (ApiError, OSError):
            return False

    assert eventually(accepted, WITHIN_S), service.logs()


@pytest.mark.slow
def test_a_service_goes_on_when_its_redis_fails_over_and_fails_back(service: FaultService, standby: Standby) -> None:
    ids = service.submit([wait_job("rollout", 2.0, job_id=f"over-{n}") for n in range(4)])
    ids += service.submit([steps_job(*STEPS, steps=len(STEPS), job_id=f"over-steps-{n}") for n in range(3)])
    service.await_turns([ids[-1]], 1)
    assert eventually(lambda: replicated(standby), WITHIN_S)
    standby.first.kill()
    assert eventually(lambda: standby.master_port() == standby.second.port, WITHIN_S)
    submit_in_the_end(service, "over-after")
    ids.append("over-after")
    assert eventually(lambda: {service.record(i).get("state") for i in ids} <= TERMINAL, WITHIN_S), service.told(ids)
    assert service.states(ids, 0) == {"completed": len(ids)}, service.told(ids)
    assert {service.client.status(one).attempt for one in ids} == {1}

    standby.first.start()  # comes back as a master of its own, with a file of its own; Sentinel makes it a replica
    assert eventually(lambda: follows_the_second(standby), WITHIN_S)
    late = service.submit([wait_job("rollout", 1.0, job_id=f"back-{n}") for n in range(4)])
    with standby.sentinels[0].client() as client:
        assert eventually(lambda: asks_for_failover(client, standby.SERVICE), WITHIN_S)
    assert eventually(lambda: standby.master_port() == standby.first.port, WITHIN_S)
    # What the second master took in the moment of the change is lost; what is lost is done again.
    ids += late
    assert eventually(lambda: {service.record(i).get("state") for i in ids} <= TERMINAL, WITHIN_S), service.told(late)
    assert service.states(ids, 0) == {"completed": len(ids)}, service.told(late)


def replicated(standby: Standby) -> bool:
    """Whether the replica has all that the master had when it was asked."""
    with standby.first.client() as first, standby.second.client() as second:
        wanted = first.info("replication")["master_repl_offset"]
        return bool(second.info("replication")["slave_repl_offset"] >= wanted)


def follows_the_second(standby: Standby) -> bool:
    """Whether the first server is a replica now, and has all."""
    with standby.first.client() as client:
        told = client.info("replication")
    return (told["role"], told.get("master_link_status")) == ("slave", "up")


def asks_for_failover(client: Any, service: str) -> bool:
    """Ask Sentinel for a planned failover; False while it will not yet."""
    try:
        client.execute_command("SENTINEL", "FAILOVER", service)
    except redis.ResponseError:  # no good replica, or one under way
        threading.Event().wait(0.3)
        return False
    return True
