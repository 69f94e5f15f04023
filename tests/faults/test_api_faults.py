"""Callers that all come at once, send nonsense or much, and wait while the API dies under them."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from e2e_service import eventually
from fault_jobs import wait_job
from fault_service import WITHIN_S, FaultService, hurt_service, send

from prorl_celery.client import Client
from prorl_celery.testing import ScriptedBackend

WAITERS = 1000
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory, backend: ScriptedBackend) -> Iterator[FaultService]:
    """One whose API lets that many wait."""
    limits = {"PRORL_MAX_WAITERS": str(WAITERS + 24), "PRORL_MAX_BODY": str(8 << 20), "PRORL_MAX_BLOB": str(8 << 20)}
    with hurt_service(tmp_path_factory.mktemp("api"), **limits) as service:
        service.add_backend(backend)
        yield service


def call(service: FaultService, body: Any, **options: Any) -> tuple[int, Any]:
    """POST a body to the jobs as it is; the status and the answer."""
    parts = urlsplit(service.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WITHIN_S)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before it was read
            connection.request("POST", "/v1/jobs", body=body, headers=JSON, **options)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What `act` gives in so many threads that begin together; None where it raised."""
    barrier = threading.Barrier(count)
    found: list[Any] = [None] * count

    def run(number: int) -> None:
        barrier.wait(WITHIN_S)
        found[number] = act(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * WITHIN_S)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_f33_fifty_callers_who_submit_the_same_job_at_once_have_made_one(service: FaultService) -> None:
    body = json.dumps(wait_job(job_id="f33"))
    answers = at_once(50, lambda _: call(service, body))
    service.submitted.append("f33")
    assert Counter(status for status, _ in answers) == {201: 1, 200: 49}
    assert {told["job_id"] for _, told in answers} == {"f33"}
    assert service.states(["f33"]) == {"completed": 1}
    events = [event.data for event in service.client.events("f33", timeout=WITHIN_S)]
    assert [event.get("stage") for event in events if event.get("state") == "running"] == ["init", "rollout", "eval"]


def test_f33_of_fifty_different_jobs_of_one_id_one_is_accepted(service: FaultService) -> None:
    answers = at_once(50, lambda n: call(service, json.dumps(wait_job(job_id="f33-b", tags={"n": str(n)}))))
    service.submitted.append("f33-b")
    assert Counter(status for status, _ in answers) == {201: 1, 409: 49}
    (accepted,) = [told for status, told in answers if status == 201]
    assert service.client.status("f33-b").tags == accepted["tags"]
    assert service.states(["f33-b"]) == {"completed": 1}


def test_f34_a_big_body_a_chunked_one_and_nonsense_get_their_answers(service: FaultService) -> None:
    big = wait_job(job_id="f34-big")
    big["instance"]["note"] = "x" * (5 << 20)
    chunked = json.dumps(wait_job(job_id="f34-chunked")).encode()
    status, told = call(service, json.dumps(big))
    assert status == 201, told
    assert call(service, (chunked[at : at + 7] for at in range(0, len(chunked), 7)), encode_chunked=True)[0] == 201
    service.submitted += ["f34-big", "f34-chunked"]
    for nonsense in (b"", b"{", b"[1, 2", b'{"a": NaN}', b"\xff\xfe", b"[" * 100_000, b'"' + b"x" * (1 << 20)):
        status, told = call(service, nonsense)
        assert (status, told["title"]) == (400, "Bad Request"), nonsense[:20]
    status, told = call(service, b" " * (9 << 20))
    assert status == 413
    assert str(8 << 20) in told["detail"]
    status, told = call(service, (b" " * 65_536 for _ in range(160)), encode_chunked=True)
    assert status == 413
    assert service.states(service.submitted) == {"completed": 2}


@pytest.mark.slow
def test_f35_a_thousand_who_wait_go_on_when_the_api_is_killed_and_back(service: FaultService) -> None:
    ids = service.submit([wait_job("rollout", 600.0, job_id=f"f35-{n}") for n in range(6)])
    service.await_stage(ids, "rollout")
    api = service.child("api")

    def wait(number: int) -> str:
        with Client(service.url, patience=2 * WITHIN_S) as client:
            return client.wait(ids[number % len(ids)], timeout=4 * WITHIN_S).state

    def kill() -> None:
        assert eventually(lambda: service.client.service_status()["long_polls"] >= WAITERS, 2 * WITHIN_S)
        send(api, signal.SIGKILL)
        # Half of the jobs end while nobody is there to tell.
        for job_id in ids[::2]:
            service.store.cancel(job_id)
        assert eventually(lambda: service.child("api") != api, WITHIN_S), service.logs()
        for job_id in ids[1::2]:
            service.store.cancel(job_id)

    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(at_once(WAITERS, wait)))
    waiting.start()
    kill()
    waiting.join(6 * WITHIN_S)
    assert Counter(map(str, found)) == {"cancelled": WAITERS}
