"""F36: inference backends that die, hang, and join again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from e2e_service import eventually
from fault_jobs import steps_job
from fault_service import WITHIN_S, FaultService

from prorl_celery.testing import ScriptedBackend

TURNS = 8
MODEL = "scripted-three"


@pytest.fixture
def three(service: FaultService) -> Iterator[list[ScriptedBackend]]:
    with ExitStack() as stack:
        made = [ScriptedBackend(policy=f"toy:{TURNS},8", latency=0.4, model_id=MODEL) for _ in range(3)]
        backends = [stack.enter_context(backend) for backend in made]
        for backend in backends:
            service.add_backend(backend, model=MODEL)
        yield backends
        for backend in backends:
            service.client.remove_backend(backend.url, mode="now")


def thinking_job(job_id: str) -> dict[str, Any]:
    """A job of several turns that needs no sandbox."""
    instance = {"data_source": "math", "problem": "Think.", "answer": 1}
    sampling = {"model": MODEL}
    return {"job_id": job_id, "instance": instance, "agent": {"tools": ["think"]}, "sampling_params": sampling}


def states(service: FaultService) -> dict[str, str]:
    return {one["url"]: one["state"] for one in service.client.backends()}


@pytest.mark.slow
def test_f36_jobs_outlive_a_backend_that_dies_and_one_that_hangs_and_both_come_back_without_a_herd(
    service: FaultService, three: list[ScriptedBackend]
) -> None:
    dead, hung, sound = three
    ids = service.submit([thinking_job(f"f36-{n}") for n in range(8)])
    service.await_turns(ids, 1)
    assert {service.client.status(i).backend for i in ids} == {one.url for one in three}
    dead.kill()
    hung.freeze()
    assert eventually(lambda: [states(service)[one.url] for one in (dead, hung)] == ["down", "down"], WITHIN_S)
    assert service.states(ids) == {"completed": 8}, service.told(ids)
    for job_id in ids:
        status, turns = service.client.status(job_id), service.client.result(job_id).turns
        assert (status.attempt, len(turns)) == (1, TURNS), service.told([job_id])
        urls = [turn.backend for turn in turns]
        assert sum(one != other for one, other in pairwise(urls)) <= 2, "moved, not sent about"
    assert eventually(lambda: {one["assigned"] for one in service.client.backends()} == {0}, WITHIN_S)
    dead.start()
    hung.thaw()
    assert eventually(lambda: set(states(service).values()) == {"up"}, WITHIN_S), states(service)
    more = service.submit([thinking_job(f"f36-more-{n}") for n in range(6)])
    service.await_turns(more, 1)
    share = Counter(service.client.status(i).backend for i in more)
    assert set(share) == {one.url for one in three}, share
    assert max(share.values()) <= 3, "no herd at those that joined"
    assert service.states(more) == {"completed": 6}
    assert hung.wait_until(live=0, seconds=WITHIN_S)
    assert sound.stats()["live"] == 0


def test_a_job_whose_backends_answers_are_of_no_use_ends_after_its_attempts(
    service: FaultService, backend: ScriptedBackend
) -> None:
    backend.fail("no_ids", count=1000)
    [job_id] = service.submit([steps_job("echo 1 >> steps", steps=1, job_id="no-ids", max_attempts=2)])
    status = service.client.wait(job_id, timeout=WITHIN_S)
    assert (status.state, status.attempt) == ("failed", 2), service.told([job_id])
    assert status.error is not None
    assert status.error.kind == "backend"
    assert service.client.result(job_id).reward is None
    backend.reset()
