"""The API as gunicorn serves it: real processes, real sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from web_helpers import Served, a_job, run_to_its_end, until

from prorl_celery.jobs.store import JobStore
from prorl_celery.settings import Settings

Serve = Callable[..., Served]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_three_hundred_waiters_are_woken_and_starve_nobody(serve: Serve, store: JobStore) -> None:
    api = serve(api_threads=8)
    ids = [f"j{i}" for i in range(300)]
    assert api.call("POST", "/v1/jobs", {"jobs": [a_job(i) for i in ids]})[0] == 201
    with ThreadPoolExecutor(300) as pool:
        polls = [pool.submit(api.get, f"/v1/jobs/{i}?wait=60") for i in ids]
        until(lambda: api.get("/v1/status")[1]["long_polls"] == 300, 30)
        for _ in range(20):
            began = time.monotonic()
            assert api.get("/healthz", timeout=10)[0] == 200
            assert time.monotonic() - began < 5
        for job_id in ids:
            store.cancel(job_id)
        answers = [poll.result(60) for poll in polls]
    assert {(status, body["state"]) for status, body in answers} == {(200, "cancelled")}


def test_fifty_identical_submits_at_once_make_one_job(serve: Serve) -> None:
    api = serve()
    with ThreadPoolExecutor(50) as pool:
        codes = sorted(pool.map(lambda _: api.call("POST", "/v1/jobs", a_job("one"))[0], range(50)))
    assert codes == [200] * 49 + [201]
    assert len(api.get("/v1/jobs")[1]["jobs"]) == 1


def test_a_submitted_job_is_published_to_the_broker(serve: Serve, raw_redis: object) -> None:
    api = serve()
    api.call("POST", "/v1/jobs", {"jobs": [a_job("a"), a_job("b", priority=9)]})
    lists = {key for key in raw_redis.keys("init*") if raw_redis.type(key) == b"list"}  # type: ignore[attr-defined]
    assert sum(raw_redis.llen(key) for key in lists) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_the_waiters_and_is_quick(serve: Serve, number: signal.Signals) -> None:
    api = serve()
    api.call("POST", "/v1/jobs", a_job("a"))
    workers = api.workers()
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(api.get, "/v1/jobs/a?wait=60")
        until(lambda: api.get("/v1/status")[1]["long_polls"] == 1, 10)
        began = time.monotonic()
        api.process.send_signal(number)
        assert api.process.wait(20) == 0
        assert time.monotonic() - began < 8
        if number == signal.SIGTERM:
            assert poll.result(20)[1]["state"] == "queued"
        else:
            poll.exception(20)
    assert workers
    until(lambda: all(gone(pid) for pid in workers), 10)


def test_its_processes_end_when_the_first_one_is_killed(serve: Serve) -> None:
    api = serve(api_processes=2)
    until(lambda: len(api.workers()) == 2, 10)
    workers = api.workers()
    api.process.kill()
    api.process.wait(10)
    until(lambda: all(gone(pid) for pid in workers), 10)


def test_a_worker_that_is_killed_is_replaced(serve: Serve) -> None:
    api = serve()
    first = api.workers()
    os.kill(first[0], signal.SIGKILL)
    until(lambda: api.workers() not in ([], first), 20)
    api.ready()


def test_a_body_of_100_mb_is_refused_without_being_kept(serve: Serve) -> None:
    api = serve(max_body_bytes=1 << 20)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 104857600\r\n\r\n"
    assert b" 413 " in exchange(api.port, head)
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 413 " in exchange(api.port, head + chunk * 17)
    worker = api.workers()[0]
    status = Path(f"/proc/{worker}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 200 * 1024


def test_a_chunked_body_within_the_limit_is_taken(serve: Serve) -> None:
    api = serve()
    body = b'{"job_id": "chunked", "instance": {"data_source": "echo", "text": "a"}}'
    halves = [body[:20], body[20:]]
    sent = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in halves) + b"0\r\n\r\n"
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 201 " in exchange(api.port, head + sent)


def test_a_body_that_stops_coming_gives_the_thread_back(serve: Serve) -> None:
    api = serve(api_threads=2, max_waiters=0)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    assert b" 408 " in exchange(api.port, head, timeout=60)


def exchange(port: int, data: bytes, timeout: float = 30) -> bytes:
    """Send bytes and give the beginning of what comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(data)
        return connection.recv(4096)


def test_it_refuses_to_listen_to_everybody_without_tokens(settings: Settings) -> None:
    code = "from prorl_celery.settings import Settings\nfrom web.serve import main\nmain(Settings.from_env())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}
    environment |= settings.with_(host="0.0.0.0", port=0).to_env()
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert "prorl token new" in ended.stderr


def test_redis_may_go_and_come_back_under_a_running_api(serve: Serve, redis_process: object, store: JobStore) -> None:
    api = serve()
    api.call("POST", "/v1/jobs", a_job("a"))
    answers: list[object] = []
    poll = threading.Thread(target=lambda: answers.append(api.get("/v1/jobs/a?wait=60")))
    poll.start()
    until(lambda: api.get("/v1/status")[1]["long_polls"] == 1, 10)
    threading.Event().wait(0.5)  # its first look, which nobody sees from outside
    redis_process.kill()  # type: ignore[attr-defined]
    assert api.get("/v1/jobs/a")[0] == 503
    assert api.get("/healthz")[0] == 200
    assert api.get("/readyz")[0] == 503
    redis_process.start()  # type: ignore[attr-defined]
    until(lambda: api.get("/v1/jobs/a")[0] == 200, 20)
    run_to_its_end(store, "a")
    poll.join(60)
    assert answers[0][1]["state"] == "completed"  # type: ignore[index]
