"""The client against a server that answers as told: retries, patience, errors, and what it sends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from prorl_celery.client import ApiError, ApiUnavailable, Client, JobRequest

STATUS = {"job_id": "a", "state": "queued", "stage": "init", "attempt": 1, "created_at": "2026-11-29T00:00:00Z"}
RESULT = {
    "job_id": "a",
    "state": "completed",
    "reward": 1.0,
    "finish_reason": "stop",
    "messages": [],
    "segments": [],
    "turns": [],
}

Script = Callable[[int, str, str, Any], tuple[int, dict[str, str], Any]]


class Scripted:
    """A server; `script(n, method, path, body)` answers the n-th request."""

    def __init__(self, script: Script) -> None:
        self.requests: list[tuple[str, str, Any, str | None]] = []
        self.connections: set[Any] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = json.loads(raw) if raw else None
                outer.connections.add(self.client_address)
                outer.requests.append((self.command, self.path, body, self.headers.get("Authorization")))
                status, headers, reply = script(len(outer.requests), self.command, self.path, body)
                if status == 0:  # drop the connection without a word
                    self.close_connection = True
                    return
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = respond

            def log_message(self, *_: Any) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_address[1]}"


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    server = Scripted(script)
    server.httpd.daemon_threads = True
    thread = threading.Thread(target=server.httpd.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.httpd.shutdown()
        server.httpd.server_close()
        thread.join(10)


def test_a_job_is_given_its_id_before_it_is_sent() -> None:
    with scripted(lambda n, *_: (0, {}, "") if n == 1 else (201, {}, STATUS)) as server, Client(server.url) as client:
        client.submit({"instance": {"data_source": "echo"}})
    ids = {body["job_id"] for _, _, body, _ in server.requests}
    assert len(server.requests) == 2
    assert len(ids) == 1


def test_a_model_is_sent_with_what_was_set_and_its_id() -> None:
    job = JobRequest.model_validate({"instance": {"data_source": "echo", "x": [1]}, "priority": 7})
    with scripted(lambda *_: (201, {}, STATUS)) as server, Client(server.url) as client:
        client.submit(job)
    assert server.requests[0][2] == {"instance": {"data_source": "echo", "x": [1]}, "priority": 7, "job_id": job.job_id}


def test_a_long_list_is_sent_in_thousands_over_one_connection() -> None:
    def accept(_n: int, _m: str, _p: str, body: Any) -> tuple[int, dict[str, str], Any]:
        return 201, {}, {"jobs": [{**STATUS, "job_id": job["job_id"]} for job in body["jobs"]]}

    jobs = [{"job_id": f"j{i}", "instance": {"data_source": "echo"}} for i in range(2500)]
    with scripted(accept) as server, Client(server.url) as client:
        statuses = client.submit(jobs)
    assert [status.job_id for status in statuses] == [job["job_id"] for job in jobs]
    assert [len(body["jobs"]) for _, _, body, _ in server.requests] == [1000, 1000, 500]
    assert len(server.connections) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again_when_it_says(status: int) -> None:
    busy = (status, {"Retry-After": "1"}, {"detail": "later"})
    with scripted(lambda n, *_: busy if n < 3 else (200, {}, STATUS)) as server, Client(server.url) as client:
        began = time.monotonic()
        assert client.status("a").state == "queued"
        assert time.monotonic() - began >= 2
    assert len(server.requests) == 3


def test_patience_ends() -> None:
    with scripted(lambda *_: (503, {"Retry-After": "1"}, {"detail": "later"})) as server:
        with Client(server.url, patience=1.5) as client, pytest.raises(ApiError, match="later") as caught:
            client.status("a")
    assert caught.value.status == 503
    with Client("http://127.0.0.1:9", patience=0.3) as client, pytest.raises(ApiUnavailable) as unreachable:
        client.status("a")
    assert unreachable.value.status is None
    assert isinstance(unreachable.value, ConnectionError)


def test_a_refusal_carries_its_problem_document() -> None:
    problem = {"detail": "1 bad field", "errors": [{"field": "priority", "message": "too big"}]}
    with scripted(lambda *_: (422, {}, problem)) as server, Client(server.url) as client:
        with pytest.raises(ApiError, match="priority: too big") as caught:
            client.submit({"instance": {}})
    assert caught.value.fields == {"priority": "too big"}
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b'{"errors": null}'])
def test_a_refusal_that_is_no_problem_document_is_an_error_all_the_same(body: bytes) -> None:
    with scripted(lambda *_: (502, {}, body)) as server, Client(server.url) as client:
        with pytest.raises(ApiError, match="502"):
            client.status("a")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b"{}"])
def test_an_answer_that_is_not_of_this_service_is_an_error(body: bytes) -> None:
    with scripted(lambda *_: (200, {}, body)) as server, Client(server.url) as client:
        for call in (client.backends, client.nodes, lambda: client.status("a"), client.results_page):
            with pytest.raises(ApiError, match="not an answer"):
                call()


def test_waiting_goes_on_until_the_job_has_ended_and_minds_a_full_house() -> None:
    def answer(n: int, *_: Any) -> tuple[int, dict[str, str], Any]:
        return 200, {"Retry-After": "1"} if n == 1 else {}, STATUS if n < 3 else {**STATUS, "state": "completed"}

    with scripted(answer) as server, Client(server.url) as client:
        assert client.wait("a", timeout=30).state == "completed"
    assert len(server.requests) == 3
    assert server.requests[0][1].startswith("/v1/jobs/a?wait=")


def test_waiting_ends_with_its_time() -> None:
    def slow(*_: Any) -> tuple[int, dict[str, str], Any]:
        threading.Event().wait(0.2)
        return 200, {}, STATUS

    with scripted(slow) as server, Client(server.url) as client, pytest.raises(TimeoutError):
        client.wait("a", timeout=0.5)


def test_results_are_followed_by_their_cursor() -> None:
    pages = {None: ("1-0", ["a", "b"]), "1-0": ("2-0", ["c"]), "2-0": ("2-0", [])}

    def answer(_n: int, _m: str, path: str, _b: Any) -> tuple[int, dict[str, str], Any]:
        after = next((part[6:] for part in path.split("?")[1].split("&") if part.startswith("after=")), None)
        following, ids = pages[after]
        threading.Event().wait(0 if ids else 0.1)
        page = {"results": [{**RESULT, "job_id": i} for i in ids], "next": following, "truncated": False}
        return 200, {}, page

    with scripted(answer) as server, Client(server.url) as client:
        assert [result.job_id for result in client.results(timeout=1.0)] == ["a", "b", "c"]
        page = client.results_page("1-0")
    assert (page.next, page.truncated, page.results[0].job_id) == ("2-0", False, "c")


def test_the_other_calls_and_the_token() -> None:
    def answer(_n: int, method: str, path: str, _b: Any) -> tuple[int, dict[str, str], Any]:
        route = path.split("?")[0]
        replies = {
            ("GET", "/base/v1/backends"): {"backends": [{"url": "u"}]},
            ("GET", "/base/v1/nodes"): {"nodes": [{"node": "n"}]},
            ("GET", "/base/v1/jobs/a%2Fb/result"): RESULT,
            ("DELETE", "/base/v1/jobs/a"): STATUS,
        }
        return 200, {}, replies.get((method, route), {"ok": True})

    with scripted(answer) as server, Client(server.url + "/base/", token="secret") as client:
        assert client.backends() == [{"url": "u"}]
        assert client.nodes() == [{"node": "n"}]
        assert client.result("a/b", tokens=False).reward == 1.0
        assert client.cancel("a").job_id == "a"
        assert client.add_backend("http://h", "m", kind="chat") == {"ok": True}
        assert client.remove_backend("http://h", mode="now") == {"ok": True}
        assert client.service_status() == {"ok": True}
    assert {authorization for *_, authorization in server.requests} == {"Bearer secret"}
    assert (
        "POST",
        "/base/v1/backends",
        {"url": "http://h", "model": "m", "kind": "chat"},
        "Bearer secret",
    ) in server.requests
    assert "secret" not in repr(client)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8006", "ftp://h", "http://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Client(url)


def test_closing_ends_a_pause() -> None:
    with scripted(lambda *_: (503, {"Retry-After": "30"}, {})) as server:
        client = Client(server.url)
        threading.Timer(0.3, client.close).start()
        began = time.monotonic()
        with pytest.raises(ApiError):
            client.status("a")
        assert time.monotonic() - began < 15
