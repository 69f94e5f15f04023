"""Backends that answer nonsense: each ends in a typed error or a retry, none in a wrong result."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from llm_stub import Signal, Stub, completion

from prorl_celery.errors import BackendError, Cancelled, StageTimeout
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm import wire
from prorl_celery.llm.conversation import TokenConversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.request import ConversationRequest

Make = Callable[..., TokenConversation]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.01)


@pytest.fixture
def make(stub: Stub, tokenizer_dir: Path, model_loop: ModelLoop, cancel: Signal) -> Make:
    def make(url: str | None = None, seconds: float = 30.0) -> TokenConversation:
        endpoint = Endpoint(url=url or stub.url, model="m", tokenizer=str(tokenizer_dir), api_key="secret")
        messages = [{"role": "user", "content": "hi"}]
        return TokenConversation(
            endpoint,
            ConversationRequest(
                job_id="job-1", messages=messages, sampling=SamplingParams(max_tokens=8), model_loop=model_loop,
                cancel=cancel, deadline=lambda: seconds,
            ),
        )  # fmt: skip

    return make


def raw(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json")


def good(**changes: Any) -> dict[str, Any]:
    return completion([5, 6, 2], **changes)


NONSENSE = {
    "HTML": lambda: web.Response(text="<html>Welcome</html>", content_type="text/html"),
    "half a JSON": lambda: raw('{"choices": [{"token_ids": [1, 2'),
    "an empty body": lambda: raw(""),
    "JSON that is no object": lambda: raw("[1, 2]"),
    "absurd nesting": lambda: raw("[" * 200_000),
    "an error with status 200": lambda: raw('{"error": {"message": "boom"}}'),
    "no choices": lambda: {"choices": []},
    "two choices": lambda: {"choices": [good()["choices"][0]] * 2},
    "no ids": lambda: good(token_ids=None),
    "ids that are text": lambda: good(token_ids=["a", "b", "c"]),
    "ids that are fractions": lambda: good(token_ids=[1.5, 2, 3]),
    "an id past int32": lambda: good(token_ids=[2**40, 2, 3]),
    "an id out of the vocabulary": lambda: good(token_ids=[5, 100_000, 2]),
    "a negative id": lambda: good(token_ids=[5, -1, 2]),
    "no logprobs": lambda: good(logprobs=None),
    "fewer logprobs than ids": lambda: good(logprobs={"token_logprobs": [-0.1, -0.1]}),
    "NaN": lambda: raw(
        '{"choices": [{"finish_reason": "stop", "token_ids": [5], "logprobs": {"token_logprobs": [NaN]}}]}'
    ),
    "a logprob of null": lambda: good(logprobs={"token_logprobs": [-0.1, None, -0.1]}),
    "infinite logprobs": lambda: raw(
        '{"choices": [{"finish_reason": "stop", "token_ids": [5], "logprobs": {"token_logprobs": [-1e999]}}]}'
    ),
    "logprobs above zero": lambda: good(logprobs={"token_logprobs": [-0.1, 3.5, -0.1]}),
    "other prompt ids": lambda: good(prompt=[1, 2, 3]),
    "no finish reason": lambda: good(finish_reason=None),
    "nothing sampled": lambda: completion([]),
    "more than was allowed": lambda: completion([5] * 9),
    "10 MB of text": lambda: good(text="x" * 10_000_000),
    "a refusal": lambda: raw('{"error": "no such model"}', 404),
    "a redirect": lambda: web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"}),
    "a failure for ever": lambda: raw("oops", 500),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_a_backend_error_that_names_the_backend(what: str, make: Make, stub: Stub) -> None:
    stub.answer = lambda body: NONSENSE[what]()
    conversation = make()
    with pytest.raises(BackendError, match=r"127\.0\.0\.1") as caught:
        conversation.sample()
    assert caught.value.url == stub.url
    assert "secret" not in str(caught.value)
    stub.answer = lambda body: completion([5, 2], prompt=body["prompt"])
    assert list(conversation.sample().sampled_ids) == [5, 2]


def test_only_what_was_surely_not_sampled_is_asked_again(make: Make, stub: Stub) -> None:
    replies = [raw("busy", 503), web.Response(status=429, headers={"Retry-After": "0"}), good()]
    stub.answer = lambda body: replies.pop(0)
    assert list(make().sample().sampled_ids) == [5, 6, 2]
    assert len(stub.bodies) == 3
    stub.answer = lambda body: raw("{")
    with pytest.raises(BackendError):
        make().sample()
    assert len(stub.bodies) == 4


def test_a_busy_backend_is_waited_for_longer_than_a_broken_one(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: (
        web.Response(status=429, headers={"Retry-After": "0"}) if len(stub.bodies) <= wire.FAULT_TRIES + 3 else good()
    )
    assert list(make().sample().sampled_ids) == [5, 6, 2]


def test_a_busy_backend_that_says_at_once_is_not_asked_all_its_tries_within_a_second(
    make: Make, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def passed(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(wire.asyncio, "sleep", passed)  # type: ignore[attr-defined]
    busy = web.Response(status=503, headers={"Retry-After": "0"})
    raises = {"error": wire.refusal(Endpoint(url=stub.url, model="m"), "/p", 503, busy.headers, b"")}

    async def attempt() -> None:
        raise raises["error"]

    with pytest.raises(BackendError):
        asyncio.run(wire.repeated(attempt))
    assert len(pauses) == wire.BUSY_TRIES - 1
    assert sum(pauses) > 60
    assert max(pauses[:3]) < 2


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ("2", 2.0, 2.0),
        (0, None, None),
        (60, 20.0, 30.0),  # a date, so many seconds from now; no wait is longer than half a minute
        (-3600, 0.0, 0.0),
        ("Fri, 99 Foo 2026 00:00:00 GMT", None, None),
        ("-1", None, None),
        ("nan", None, None),
        ("inf", None, None),
        ("soon", None, None),
    ],
)
def test_a_wish_to_be_asked_later_is_read_as_seconds_or_as_a_date(
    said: Any, least: float | None, most: float | None
) -> None:
    if isinstance(said, int):
        said = format_datetime(datetime.now(UTC) + timedelta(seconds=said), usegmt=True) if said else ""
    refused = wire.refusal(Endpoint(url="http://b", model="m"), "/p", 503, {"Retry-After": said}, b"")
    assert isinstance(refused, wire.Busy)
    if least is None or most is None:
        assert refused.wait_seconds is None
    else:
        assert refused.wait_seconds is not None
        assert least <= refused.wait_seconds <= most


def test_a_backend_that_is_not_there_is_tried_a_few_times(make: Make) -> None:
    with pytest.raises(BackendError, match="did not answer"):
        make("http://127.0.0.1:9/v1").sample()


def test_a_backend_that_never_answers_ends_with_the_stages_time(make: Make, stub: Stub) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    stub.answer = lambda body: never()
    with pytest.raises(StageTimeout):
        make(seconds=0.2).sample()
    assert stub.aborted.wait(5)


def test_a_cancel_frees_the_caller_and_closes_the_connection(make: Make, stub: Stub, cancel: Signal) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    def press() -> float:
        assert stub.arrived.wait(10)
        cancel.set()
        return time.monotonic()

    stub.answer = lambda body: never()
    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press)
        with pytest.raises(Cancelled):
            make().sample()
        assert time.monotonic() - pressed.result() < 1.0
    assert stub.aborted.wait(1.0)
    assert len(stub.bodies) == 1


@pytest.mark.parametrize(
    ("says", "tries"),
    [
        (b"", wire.FAULT_TRIES),
        (b"SSH-2.0-OpenSSH_9.2\r\n", wire.FAULT_TRIES),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", 1),
    ],
)
def test_a_socket_that_closes_is_tried_again_only_before_its_reply(says: bytes, tries: int, make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        seen: list[int] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    seen.append(len(connection.recv(65536)))
                    connection.sendall(says)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(BackendError):
            make(f"http://127.0.0.1:{server.getsockname()[1]}").sample()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    assert len(seen) == tries


def test_a_connection_that_the_backend_closed_while_idle_is_replaced(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: good()
    conversation = make()
    conversation.sample()
    for transport in stub.connections:
        stub._loop.call_soon_threadsafe(transport.close)
    assert list(make().sample().sampled_ids) == [5, 6, 2]
