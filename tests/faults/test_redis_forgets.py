"""F15: a Redis without a file, and one that comes back with an older state than it had told of.

What Redis has lost nobody can bring back. What must hold: the service goes on by itself, whoever holds a job that is no
more lets go of it and of its sandboxes, and a job of which an older state is back is done once from there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_service import eventually
from fault_jobs import steps_job, wait_job
from fault_redis import VOLATILE, Server, served
from fault_service import WITHIN_S, FaultService, hurt_service

from prorl_celery.client import ApiError, Client
from prorl_celery.jobs.models import TERMINAL
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.testing import ScriptedBackend

STEPS = [f"sleep 0.2; echo {n} >> steps" for n in range(1, 6)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that writes nothing unless it is told to, and reads what it finds."""
    with served(Server(tmp_path_factory.mktemp("redis"), *VOLATILE)) as server:
        yield server


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory, backend: ScriptedBackend, server: Server) -> Iterator[FaultService]:
    with hurt_service(tmp_path_factory.mktemp("hurt"), PRORL_REDIS_URL=server.url, PRORL_LEASE="6") as service:
        service.redis_url = server.url
        service.add_backend(backend)
        yield service


def joined_again(service: FaultService, backend: ScriptedBackend) -> bool:
    """Whether the backend, which is forgotten with the rest, is registered, and the node's processes are there."""
    try:
        service.add_backend(backend)
        return service.is_whole()
    except ApiError:
        return False


@pytest.mark.slow
def test_f15_a_redis_that_lost_everything_is_begun_with_anew(
    service: FaultService, server: Server, backend: ScriptedBackend
) -> None:
    gone = service.submit([steps_job(*STEPS, steps=len(STEPS), job_id=f"f15-gone-{n}") for n in range(3)])
    gone += service.submit([wait_job("rollout", 1.0, job_id=f"f15-gone-wait-{n}") for n in range(20)])
    service.await_turns(gone[:1], 1)
    server.restart()
    service.submitted.clear()
    assert eventually(lambda: joined_again(service, backend), WITHIN_S), service.logs()
    with Client(service.url, patience=5.0) as client, pytest.raises(ApiError) as unknown:
        client.status(gone[0])
    assert unknown.value.status == 404
    assert eventually(lambda: KeeperClient(service.settings).list() == [], WITHIN_S), "of jobs that are no more"
    again = service.submit([steps_job(*STEPS, steps=len(STEPS), job_id=f"f15-gone-{n}") for n in range(3)])
    assert service.states(again) == {"completed": 3}, service.told(again)


@pytest.mark.slow
def test_f15_jobs_of_which_an_older_state_is_back_are_done_once_from_there(
    service: FaultService, server: Server
) -> None:
    queued = [wait_job("rollout", 2.0, job_id=f"f15-old-{n}") for n in range(12)]
    ids = service.submit([*queued, *(steps_job(*STEPS, steps=5, job_id=f"f15-old-steps-{n}") for n in range(2))])
    service.redis.save()
    # All that happens from here on is forgotten: claims, turns, commits, ends.
    ended: list[str] = []

    def some_ended() -> bool:
        ended[:] = [one for one in ids if service.record(one)["state"] == "completed"]
        return bool(ended)

    assert eventually(some_ended, WITHIN_S)
    server.restart()
    assert all(service.record(one)["state"] != "completed" for one in ended)
    over = eventually(lambda: {service.record(one).get("state") for one in ids} <= TERMINAL, 2 * WITHIN_S)
    assert over, service.told(ids)
    assert service.states(ids, 0) == {"completed": len(ids)}, service.told(ids)
    assert {service.client.status(one).attempt for one in ids} == {1}, "nobody's fault"
    for one in ids:
        if "-steps-" in one:
            result = service.client.result(one)
            assert len(result.turns) == len(STEPS) + 1, "of one holder, each once"
    (server.folder / "dump.rdb").unlink()
