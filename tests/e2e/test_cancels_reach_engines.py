"""A job that must stop stops its generation too: at the backend that has it, and nowhere is another begun."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from e2e_service import Service, eventually

from prorl_celery.testing import ScriptedBackend

pytestmark = pytest.mark.e2e

MODEL = "scripted-slow"
GENEROUS_SECONDS = 60.0


@pytest.fixture(scope="module")
def slow(service: Service) -> Iterator[list[ScriptedBackend]]:
    """Two backends whose generations take ten minutes."""
    with ExitStack() as stack:
        options: dict[str, Any] = {"policy": "loop", "latency": 600.0, "model_id": MODEL, "record": 100}
        backends = [stack.enter_context(ScriptedBackend(**options)) for _ in range(2)]
        for backend in backends:
            service.add_backend(backend, model=MODEL)
            stack.callback(service.client.remove_backend, backend.url, mode="now")
        yield backends


def submit(service: Service, mode: str, **fields: Any) -> str:
    job = {
        "instance": {"data_source": "math", "problem": "What is 1 + 1?", "answer": "2"},
        "sampling_params": {"model": MODEL},
        "llm": {"mode": mode},
        "agent": {"tools": []},
        **fields,
    }
    return service.client.submit(job).job_id


@pytest.mark.parametrize("mode", ["tokens", "chat"])
def test_a_cancel_ends_the_generation_at_its_backend(service: Service, slow: list[ScriptedBackend], mode: str) -> None:
    """Public reports: an abort that reaches the router only; a generation that runs on when the client has gone."""
    for backend in slow:
        backend.reset()
    job_id = submit(service, mode)
    assert eventually(lambda: any(backend.stats()["live"] for backend in slow), GENEROUS_SECONDS), service.logs()
    mine, other = sorted(slow, key=lambda backend: -backend.stats()["live"])
    began = time.monotonic()
    service.client.cancel(job_id)
    assert eventually(lambda: mine.stats()["live"] == 0, GENEROUS_SECONDS)
    took = time.monotonic() - began
    assert service.client.wait(job_id, timeout=GENEROUS_SECONDS).state == "cancelled"
    assert not eventually(lambda: mine.stats()["calls"] + other.stats()["calls"] > 1, 0.5)
    assert (mine.stats()["aborts"], mine.stats()["peak_live"], other.stats()["calls"]) == (1, 1, 0)
    assert took < GENEROUS_SECONDS / 6  # it is some 50 ms on an idle machine


def test_a_deadline_ends_the_generation_too(service: Service, slow: list[ScriptedBackend]) -> None:
    for backend in slow:
        backend.reset()
    job_id = submit(service, "tokens", timeouts={"rollout": 3})
    status = service.client.wait(job_id, timeout=GENEROUS_SECONDS)
    assert (status.state, status.error and status.error.stage) == ("timed_out", "rollout")
    assert eventually(lambda: sum(backend.stats()["live"] for backend in slow) == 0, GENEROUS_SECONDS)
    assert sum(backend.stats()["calls"] for backend in slow) <= 1


def test_a_job_that_a_pause_holds_is_cancelled_and_makes_no_call(service: Service, slow: list[ScriptedBackend]) -> None:
    for backend in slow:
        backend.reset()
    assert service.client.pause(model=MODEL)["complete"]
    job_id = submit(service, "tokens")
    assert eventually(lambda: service.client.status(job_id).backend is not None, GENEROUS_SECONDS)
    service.client.cancel(job_id)
    assert service.client.wait(job_id, timeout=GENEROUS_SECONDS).state == "cancelled"
    assert sum(backend.stats()["calls"] for backend in slow) == 0
    assert service.client.resume(model=MODEL)["pauses_ended"] == 1
