"""Inference backends that hang, die and are taken out under a whole service."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from e2e_service import Service, eventually, running

from prorl_celery.testing import ScriptedBackend

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TURNS = 12
GENEROUS_SECONDS = 90.0


@pytest.fixture
def four(tmp_path: Path) -> Iterator[tuple[Service, list[ScriptedBackend]]]:
    """A service with four backends."""
    with ExitStack() as stack:
        backends = [stack.enter_context(ScriptedBackend(policy=f"toy:{TURNS},8", latency=0.7)) for _ in range(4)]
        service = stack.enter_context(running(tmp_path / "data", PRORL_ROLLOUT_PROCESSES="1"))
        for backend in backends:
            service.add_backend(backend)
        yield service, backends


def job(job_id: str) -> dict[str, Any]:
    instance = {"data_source": "math", "problem": "Think.", "answer": 1}
    return {"job_id": job_id, "instance": instance, "agent": {"tools": ["think"]}, "max_attempts": 1}


def states(service: Service) -> dict[str, str]:
    return {one["url"]: one["state"] for one in service.client.backends()}


def test_jobs_outlive_a_backend_that_hangs_one_that_dies_and_one_that_is_taken_out(
    four: tuple[Service, list[ScriptedBackend]],
) -> None:
    service, (hung, dead, taken, sound) = four
    ids = [f"j{n}" for n in range(16)]
    service.client.submit([job(job_id) for job_id in ids])
    assert eventually(lambda: all(service.client.status(i).turns >= 1 for i in ids), GENEROUS_SECONDS), service.logs()
    assert {service.client.status(i).backend for i in ids} == {one.url for one in (hung, dead, taken, sound)}
    began = time.monotonic()
    hung.freeze()
    dead.kill()
    service.client.remove_backend(taken.url, mode="now")
    assert eventually(lambda: states(service).get(hung.url) == "down", GENEROUS_SECONDS)
    print(f"a hung backend was out after {time.monotonic() - began:.1f} s")
    ways = Counter[tuple[str | None, str | None]]()
    for job_id in ids:
        status = service.client.wait(job_id, timeout=GENEROUS_SECONDS)
        assert (status.state, status.attempt) == ("completed", 1), (status, service.logs())
        turns = service.client.result(job_id).turns
        assert len(turns) == TURNS
        urls = [turn.backend for turn in turns]
        assert sum(one != other for one, other in pairwise(urls)) <= 1
        ways[urls[0], urls[-1]] += 1
    for one in (hung, dead, taken, sound):
        assert ways[one.url, sound.url], ways
    assert states(service) == {hung.url: "down", dead.url: "down", sound.url: "up"}
    assert {one["assigned"] for one in service.client.backends()} == {0}
    hung.thaw()
    dead.start()
    assert eventually(lambda: set(states(service).values()) == {"up"}, GENEROUS_SECONDS)
    hung.wait_until(live=0, seconds=GENEROUS_SECONDS)
