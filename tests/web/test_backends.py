"""POST, GET and DELETE /v1/backends, against servers that are there, are not, or are not what they should be."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from prorl_celery.testing import ScriptedBackend

Answer = Callable[[str, str, Any], tuple[int, Any]]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """A server that answers (method, path, body) as told, with JSON or with bytes."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = answer(self.command, self.path, json.loads(raw) if raw else None)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = respond

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_address[1]}"
        finally:
            httpd.shutdown()
            thread.join(10)


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    return str(tmp_path / "tokenizer")


def bad_field(answer: Any) -> str:
    assert answer.status_code == 422, answer.get_data(as_text=True)
    (error,) = answer.get_json()["errors"]
    return str(error["field"])


def test_the_scripted_backend_is_registered_updated_and_removed(api: FlaskClient) -> None:
    with ScriptedBackend() as scripted:
        spec = {"url": scripted.url, "model": scripted.model, "tokenizer": str(scripted.tokenizer_dir)}
        first = api.post("/v1/backends", json={**spec, "api_key": "secret"})
        assert first.status_code == 201, first.get_data(as_text=True)
        assert (first.get_json()["state"], first.get_json()["gives_ids"]) == ("up", True)
        assert first.get_json()["max_model_len"] > 0
        again = api.post("/v1/backends", json={**spec, "url": scripted.url + "/v1/", "weight": 2.0})
        assert (again.status_code, again.get_json()["weight"]) == (200, 2.0)
        listed = api.get("/v1/backends")
        assert [backend["assigned"] for backend in listed.get_json()["backends"]] == [0]
        assert "secret" not in listed.get_data(as_text=True) + first.get_data(as_text=True)
        assert "api_key" not in first.get_json()
        assert api.delete("/v1/backends", query_string={"url": scripted.url, "mode": "now"}).status_code == 200
        assert api.get("/v1/backends").get_json()["backends"] == []
        assert api.delete("/v1/backends", query_string={"url": scripted.url}).status_code == 404


def test_one_that_does_not_answer_is_registered_as_down(api: FlaskClient, tokenizer: str) -> None:
    spec = {"url": "http://127.0.0.1:9", "model": "m", "tokenizer": tokenizer}
    answer = api.post("/v1/backends", json=spec)
    assert (answer.status_code, answer.get_json()["state"]) == (201, "down")


@pytest.mark.parametrize("status", [500, 503, 429])
def test_one_that_is_not_ready_is_down(api: FlaskClient, tokenizer: str, status: int) -> None:
    with server(lambda *_: (status, {})) as url:
        answer = api.post("/v1/backends", json={"url": url, "model": "m", "tokenizer": tokenizer})
    assert (answer.status_code, answer.get_json()["state"]) == (201, "down")


def test_one_that_gives_no_token_ids_is_refused_for_tokens_and_taken_for_chat(api: FlaskClient, tokenizer: str) -> None:
    def plain(method: str, path: str, body: Any) -> tuple[int, Any]:
        return 200, {"choices": [{"text": "a", "message": {"content": "a"}}]}

    with server(plain) as url:
        for kind in ("vllm", "vllm_generate", "legacy"):
            spec = {"url": url, "model": "m", "kind": kind, "tokenizer": tokenizer}
            assert bad_field(api.post("/v1/backends", json=spec)) == "kind"
        chat = api.post("/v1/backends", json={"url": url, "model": "m", "kind": "chat"})
    assert chat.status_code == 201
    assert (chat.get_json()["state"], chat.get_json()["gives_ids"]) == ("up", False)


@pytest.mark.parametrize(
    "reply",
    [
        (200, b"<html>"),
        (200, b""),
        (200, b"[" * 100_000),
        (200, []),
        (200, {"choices": []}),
        (200, {"choices": [None]}),
        (200, {"choices": [{"token_ids": "ids"}]}),
        (200, {"choices": [{"token_ids": [1.5]}]}),
        (200, {"choices": [{"token_ids": [], "logprobs": {"token_logprobs": []}}]}),
        (200, {"choices": [{"token_ids": [5]}]}),
        (200, {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1.0, -2.0]}}]}),
        (200, {"data": [None, {"id": 1}], "choices": 1}),
        (404, {"error": "no such route"}),
        (302, {}),
        (200, b"x" * (3 << 20)),
    ],
)
def test_nonsense_is_refused_and_never_a_500(api: FlaskClient, tokenizer: str, reply: tuple[int, Any]) -> None:
    with server(lambda *_: reply) as url:
        spec = {"url": url, "model": "m", "tokenizer": tokenizer}
        assert bad_field(api.post("/v1/backends", json=spec)) == "kind"


@pytest.mark.parametrize(
    "reply",
    [(404, {}), (400, {"error": "no chat template"}), (200, {"choices": [{"text": "a"}]}), (200, b"<html>"), (302, {})],
)
def test_a_server_that_does_not_chat_is_refused_for_chat(api: FlaskClient, reply: tuple[int, Any]) -> None:
    with server(lambda *_: reply) as url:
        assert bad_field(api.post("/v1/backends", json={"url": url, "model": "m", "kind": "chat"})) == "kind"


def test_a_server_that_refuses_to_be_asked_for_ids_is_taken_for_chat(api: FlaskClient) -> None:
    def strict(method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "POST" and "return_token_ids" in body:
            return 400, {"error": "unknown field return_token_ids"}
        return 200, {"choices": [{"message": {"content": "a"}}]}

    with server(strict) as url:
        chat = api.post("/v1/backends", json={"url": url, "model": "m", "kind": "chat"})
    assert chat.status_code == 201
    assert (chat.get_json()["state"], chat.get_json()["gives_ids"]) == ("up", False)


def test_a_refused_key_and_another_model_are_named(api: FlaskClient, tokenizer: str) -> None:
    with server(lambda *_: (401, {})) as url:
        spec = {"url": url, "model": "m", "tokenizer": tokenizer, "api_key": "wrong"}
        assert bad_field(api.post("/v1/backends", json=spec)) == "api_key"
    with server(lambda *_: (403, {})) as url:
        spec = {"url": url, "model": "m", "tokenizer": tokenizer, "kind": "vllm_generate"}
        assert bad_field(api.post("/v1/backends", json={**spec, "api_key": "wrong"})) == "api_key"
        assert bad_field(api.post("/v1/backends", json=spec)) == "kind"  # a route that it was started without
    with server(lambda *_: (200, {"data": [{"id": "other", "max_model_len": 10}]})) as url:
        spec = {"url": url, "model": "m", "tokenizer": tokenizer}
        assert bad_field(api.post("/v1/backends", json=spec)) == "model"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": "not a url"}, "url"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://h:99999"}, "url"),
        ({"url": "http://user:secret@h"}, "url"),
        ({"url": "http://h?x=1"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"url": 1}, "url"),
        ({"tokenizer": None}, "tokenizer"),
        ({"tokenizer": "/nowhere/at/all"}, "tokenizer"),
        ({"tokenizer": "a\0b"}, "tokenizer"),
        ({"tokenizer": "/"}, "tokenizer"),
        ({"api_key": "two\r\nlines"}, "api_key"),
        ({"model": ""}, "model"),
        ({"weight": 0}, "weight"),
        ({"kind": "magic"}, "kind"),
        ({"policy_version": 10**40}, "policy_version"),
        ({"unheard": 1}, "unheard"),
    ],
)
def test_a_wrong_registration_is_told_by_its_field(
    api: FlaskClient, tokenizer: str, change: dict[str, Any], field: str
) -> None:
    spec = {"url": "http://127.0.0.1:9", "model": "m", "tokenizer": tokenizer, **change}
    assert bad_field(api.post("/v1/backends", json=spec)) == field
    assert api.get("/v1/backends").get_json()["backends"] == []


def test_a_server_that_is_silent_is_down_within_the_probe(
    api: FlaskClient, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.probe.PROBE_SECONDS", 0.5)
    go_on = threading.Event()

    def silent(*_: Any) -> tuple[int, Any]:
        go_on.wait(20)
        return 200, {}

    with server(silent) as url:
        answer = api.post("/v1/backends", json={"url": url, "model": "m", "tokenizer": tokenizer})
        go_on.set()
    assert (answer.status_code, answer.get_json()["state"]) == (201, "down")
