"""The scripted backend's behaviour under stress: callers that go away, failures on demand, its own end."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_agent import complete, post, send

from prorl_celery.testing import ScriptedBackend, scripted_tokenizer_dir

Start = Callable[..., ScriptedBackend]


@pytest.fixture(scope="module")
def looper() -> Iterator[ScriptedBackend]:
    with ScriptedBackend("loop", record=8, max_model_len=200) as backend:
        yield backend


@pytest.fixture(scope="module")
def loops() -> Iterator[ScriptedBackend]:
    with ScriptedBackend("loop") as backend:
        yield backend


@pytest.fixture
def failing(loops: ScriptedBackend) -> ScriptedBackend:
    """One that fails on demand, and that nothing was demanded of yet."""
    loops.wait_until(live=0)
    loops.reset()
    return loops


@pytest.fixture
def slow(scripted: Start) -> ScriptedBackend:
    """A backend whose calls outlast the test unless somebody ends them."""
    return scripted("toy:5,100", latency=60, record=8)


def test_a_caller_that_goes_away_is_an_abort_at_once(slow: ScriptedBackend) -> None:
    connections = [send(slow) for _ in range(5)]
    slow.wait_until(live=5)
    for connection in connections[:3]:
        connection.close()
    stats = slow.wait_until(live=2, seconds=5)
    assert stats["aborts"] == 3
    assert stats["outcomes"] == {"disconnect": 3}
    for connection in connections[3:]:
        connection.close()
    assert slow.wait_until(live=0, seconds=5)["peak_live"] == 5
    assert {call["outcome"] for call in slow.calls()} == {"disconnect"}


def test_a_request_aborted_by_its_id_answers_with_what_it_has(scripted: Start) -> None:
    backend = scripted("toy:5,100", latency=20)
    connection = send(backend, **{"X-Request-Id": "kill-me"})
    backend.wait_until(live=1)
    post(backend.url + "/abort_requests", {"request_ids": ["cmpl-kill-me", "cmpl-unknown"]})
    response = http.client.HTTPResponse(connection)
    response.begin()
    (choice,) = json.load(response)["choices"]
    assert response.headers["X-Request-Id"] == "kill-me"
    assert choice["finish_reason"] == "abort"
    assert len(choice["token_ids"]) < 100
    assert backend.wait_until(live=0)["aborts"] == 1
    response.close()
    connection.close()


@pytest.mark.parametrize(("mode", "status"), [("http500", 500), ("http429", 429)])
def test_errors_on_demand_are_as_many_as_ordered(failing: ScriptedBackend, mode: str, status: int) -> None:
    backend = failing
    backend.fail(mode, count=2)
    answers = [complete(backend) for _ in range(3)]
    assert [answer[0] for answer in answers] == [status, status, 200]
    assert ("Retry-After" in answers[0][2]) == (mode == "http429")
    assert backend.stats()["outcomes"] == {mode: 2, "stop": 1}


@pytest.mark.parametrize("mode", ["html", "half_json"])
def test_nonsense_on_demand_is_no_json(failing: ScriptedBackend, mode: str) -> None:
    backend = failing
    backend.fail(mode, count=1)
    with pytest.raises(json.JSONDecodeError):
        complete(backend)
    assert complete(backend)[0] == 200


def test_a_connection_closed_on_demand_gives_no_answer(failing: ScriptedBackend) -> None:
    backend = failing
    backend.fail("close", count=1)
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        complete(backend)
    assert complete(backend)[0] == 200


def test_answers_without_ids_and_with_nan_on_demand(failing: ScriptedBackend) -> None:
    backend = failing
    backend.fail("no_ids", count=1)
    assert complete(backend)[1]["choices"][0]["token_ids"] is None
    backend.fail("nan", count=1)
    values = complete(backend)[1]["choices"][0]["logprobs"]["token_logprobs"]
    assert all(value != value for value in values)


def test_hanging_and_slow_calls_are_live_until_the_caller_goes(failing: ScriptedBackend) -> None:
    backend = failing
    for mode in ("hang", "slow"):
        backend.fail(mode, count=1, seconds=60)
        connection = send(backend)
        backend.wait_until(live=1)
        connection.close()
        assert backend.wait_until(live=0, seconds=5)["outcomes"]["disconnect"] >= 1


def test_failures_come_with_their_probability_until_reset(failing: ScriptedBackend) -> None:
    backend = failing
    backend.fail("http500", probability=0.5)
    statuses = [complete(backend)[0] for _ in range(60)]
    assert 10 < statuses.count(500) < 50
    backend.reset()
    assert {complete(backend)[0] for _ in range(20)} == {200}
    assert backend.stats()["calls"] == 20


@pytest.mark.parametrize(
    "order", [{"mode": "explode", "count": 1}, {"mode": "nan"}, {"mode": "nan", "count": 1, "probability": 1}]
)
def test_a_wrong_order_of_failures_is_refused(looper: ScriptedBackend, order: dict[str, Any]) -> None:
    assert post(looper.url + "/scripted/fail", order)[0] == 400


@pytest.mark.parametrize("calls", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_calls_live_at_once(scripted: Start, calls: int) -> None:
    backend = scripted("toy", latency=3 if calls > 100 else 1)
    connections: list[socket.socket] = []
    try:
        connections += [send(backend) for _ in range(calls)]
        assert backend.wait_until(calls=calls, live=0, seconds=30)["outcomes"] == {"stop": calls}
        assert backend.stats()["peak_live"] > calls // 2
    finally:
        for connection in connections:
            connection.close()


def test_it_ends_with_the_process_that_started_it() -> None:
    program = (
        "import sys, time; from prorl_celery.testing import ScriptedBackend\n"
        "backend = ScriptedBackend('loop').start()\n"
        "print(backend._process.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate(timeout=10)
    poll = select.poll()
    poll.register(child)
    assert poll.poll(10_000), "the scripted backend outlived its parent"
    os.close(child)


def test_one_started_in_a_thread_outlives_the_thread() -> None:
    backends: list[ScriptedBackend] = []
    thread = threading.Thread(target=lambda: backends.append(ScriptedBackend("loop").start()))
    thread.start()
    thread.join(30)
    assert complete(backends[0])[0] == 200
    backends[0].stop()


def test_the_command_prints_one_line_and_stops_clean_on_a_signal() -> None:
    command = [sys.executable, "-P", "-m", "prorl_celery.testing.scripted", "--port=0", "--policy=loop"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    assert "test double" in line
    assert f"tokenizer={scripted_tokenizer_dir()}" in line
    server.send_signal(signal.SIGTERM)
    out, errors = server.communicate(timeout=10)
    assert (server.returncode, out, errors) == (0, "", "")
