"""What a reward server may answer, what is repeated, and what is an error at once. Never is trouble a zero."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from reward_stub import RewardStub, forever
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled, EvalError, RewardRefused, RewardUnavailable
from prorl_celery.rewards.answer import Score
from prorl_celery.rewards.remote import ANSWER_BYTES
from prorl_celery.rewards.servers import RewardServers

Ask = Callable[..., Score]


@pytest.fixture
def stub() -> Iterator[RewardStub]:
    with RewardStub() as running:
        yield running


def text(body: str, *, status: int = 200, kind: str = "application/json", **headers: str) -> web.Response:
    return web.Response(text=body, status=status, content_type=kind, headers=headers)


def test_the_server_is_sent_what_verl_calls_it_and_its_score_comes_back(stub: RewardStub, ask: Ask) -> None:
    stub.answer = lambda body: {"score": 0.25, "acc": True, "pred": "7"}
    assert ask(stub.url) == Score(0.25, {"acc": True, "pred": "7"})
    assert stub.bodies == [{"solution_str": "my answer", "ground_truth": {"answer": 7}, "data_source": "math"}]


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("1", 1.0),
        ("-0.5", -0.5),
        ('{"score": 2}', 2.0),
        ('{"reward": 0}', 0.0),
        ('{"score": 1, "reward": 9}', 1.0),
        ('{"scores": [0.5]}', 0.5),
        ('{"rewards": [0.5], "info": {}}', 0.5),
        ("[0.5]", 0.5),
        ('[{"score": 0.5}]', 0.5),
    ],
)
def test_the_forms_of_servers_that_are_about_are_read(stub: RewardStub, ask: Ask, reply: str, score: float) -> None:
    stub.answer = lambda body: text(reply)
    assert ask(stub.url).score == score


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ('{"score": NaN}', "not JSON"),
        ('{"score": Infinity}', "not JSON"),
        ('{"score": 1e999}', "no finite number"),
        ('{"score": "1.0"}', "no finite number"),
        ('{"score": null}', "no finite number"),
        ('{"score": true}', "no finite number"),
        ('{"score": [1.0]}', "no finite number"),
        ('{"scores": [1.0, 0.0]}', "2 scores, one was asked for"),
        ('{"scores": 1.0}', "float instead of a list"),
        ("[]", "0 scores"),
        ("{}", "no score"),
        ('{"detail": "bad"}', "no score: .*bad"),
        ('"1.0"', "no finite number"),
        ("<html>Welcome</html>", "not JSON: .*Welcome"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"score": 1, "other": 1e999}', "cannot be kept"),
        ('{"score": 1, "other": "\\ud800"}', "cannot be kept"),
    ],
)
def test_what_is_no_score_is_an_error_that_another_call_would_not_cure(
    stub: RewardStub, ask: Ask, reply: str, says: str
) -> None:
    stub.answer = lambda body: text(reply)
    with pytest.raises(RewardRefused, match=says) as refused:
        ask(stub.url)
    assert (refused.value.kind, refused.value.retryable) == ("eval", False)
    assert len(stub.bodies) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 403, 404, 405, 413, 422])
def test_a_refusal_is_not_repeated_and_a_redirect_not_followed(stub: RewardStub, ask: Ask, status: int) -> None:
    stub.answer = lambda body: text('{"score": 1.0}', status=status, Location=stub.url + "/elsewhere")
    with pytest.raises(RewardRefused, match=f"answered {status}") as refused:
        ask(stub.url)
    assert not refused.value.retryable
    assert len(stub.bodies) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_fault_is_repeated(stub: RewardStub, ask: Ask, status: int) -> None:
    stub.answer = lambda body: text("", status=status) if len(stub.bodies) < 3 else text("1.0")
    assert ask(stub.url).score == 1.0
    assert len(stub.bodies) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_when_it_wishes(stub: RewardStub, ask: Ask, servers: RewardServers, status: int) -> None:
    asked: list[float] = []

    def answer(body: Any) -> Any:
        asked.append(time.monotonic())
        return text("", status=status, **{"Retry-After": "1"}) if len(asked) == 1 else text("1.0")

    stub.answer = answer
    assert ask(stub.url).score == 1.0
    assert asked[1] - asked[0] >= 1.0
    [told] = servers.told()
    assert told["calls"] == {"scored": 1, "failed": 0, "busy": 1, "refused": 0}


def test_a_server_that_is_down_is_asked_until_the_time_is_over(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(RewardUnavailable, match=r"within 1\.0 s, asked [1-5] times: no answer: ") as unavailable:
        ask(f"http://user:secret@127.0.0.1:{port}/score?key=secret", seconds=1.0)
    assert time.monotonic() - began < 3.0
    assert (unavailable.value.kind, unavailable.value.retryable) == ("eval", True)
    assert "secret" not in str(unavailable.value)


def test_a_server_that_comes_up_meanwhile_scores(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    stub = RewardStub(port=port)
    opened = threading.Timer(0.5, stub.__enter__)
    opened.start()
    try:
        assert ask(stub.url, seconds=20.0).score == 1.0
    finally:
        opened.join()
        stub.__exit__(None, None, None)


def test_a_slow_server_costs_its_time_and_is_asked_again(stub: RewardStub, ask: Ask) -> None:
    stub.answer = lambda body: forever() if len(stub.bodies) == 1 else {"score": 1.0}
    assert ask(stub.url, call_seconds=0.3).score == 1.0
    stub.answer = lambda body: forever()
    with pytest.raises(RewardUnavailable, match=r"no answer within 0\.\d s"):
        ask(stub.url, seconds=0.8, call_seconds=0.3)


def test_an_answer_that_trickles_is_cut_off_in_time(ask: Ask) -> None:
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.05):
                connection.sendall(b" ")

    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with pytest.raises(RewardUnavailable):
            ask(f"http://127.0.0.1:{listener.getsockname()[1]}/", seconds=0.5, call_seconds=60.0)
    assert time.monotonic() - began < 3.0
    over.set()
    thread.join(10)


def test_a_reply_that_breaks_off_is_asked_for_again(ask: Ask) -> None:
    whole = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"score": 1.0}'

    def serve(listener: socket.socket) -> None:
        for reply in (whole[:-3], b"", whole):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        assert ask(f"http://127.0.0.1:{listener.getsockname()[1]}/").score == 1.0
        thread.join(10)


def test_an_answer_without_end_is_not_read_to_its_end(stub: RewardStub, ask: Ask) -> None:
    stub.answer = lambda body: text(json.dumps({"score": 1.0, "log": "x" * ANSWER_BYTES}))
    with pytest.raises(RewardRefused, match=f"more than {ANSWER_BYTES} bytes"):
        ask(stub.url)


def test_a_cancel_closes_the_connection_at_once(stub: RewardStub, ask: Ask, cancel: SetCancel) -> None:
    stub.answer = lambda body: forever()

    def stop() -> None:
        assert stub.arrived.wait(10)
        cancel.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(Cancelled):
        ask(stub.url, seconds=60.0, call_seconds=60.0)
    stopper.join()
    assert stub.aborted.wait(5)


def test_no_proxy_of_the_environment_is_used(stub: RewardStub, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(stub.url).score == 1.0


def test_a_user_in_the_url_is_sent_and_never_told(stub: RewardStub, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stub.answer = lambda body: text("no", status=401)
    url = stub.url.replace("http://", "http://user:hushhush@") + "?key=hushhush"
    with pytest.raises(EvalError) as refused:
        ask(url)
    assert stub.headers[0]["Authorization"] == "Basic " + base64.b64encode(b"user:hushhush").decode()
    assert "hushhush" not in str(refused.value)
    assert "hushhush" not in caplog.text


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_host_that_no_name_service_knows_to_ask_for_is_refused(ask: Ask, host: str) -> None:
    with pytest.raises(RewardRefused, match="no url that can be asked"):
        ask(f"http://{host}/")
