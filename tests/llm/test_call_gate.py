"""Calls that are held, given up and made again, with the weights' version of the moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from llm_stub import BASH, Signal, Stub, completion

from prorl_celery.errors import BackendError, Cancelled
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.conversation import Conversation, open_conversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.gate import Passage
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.reply import Reply
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.testing import ScriptedBackend

GENEROUS_SECONDS = 60.0
MESSAGES = [{"role": "user", "content": "Go on."}]


class Turnstile:
    """A gate that a test opens and closes; it keeps the passages that it gave."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.endpoint: Endpoint | None = None
        self.open = threading.Event()
        self.open.set()
        self.passages: list[Passage] = []
        self.in_flight = 0

    @contextmanager
    def call(self, endpoint: Endpoint) -> Iterator[Passage]:
        assert self.open.wait(GENEROUS_SECONDS)
        self.passages.append(Passage(self.endpoint or endpoint, self.version, f"v{self.version}"))
        self.in_flight += 1
        try:
            yield self.passages[-1]
        finally:
            self.in_flight -= 1


class Sampling:
    """A `sample()` on a thread of its own."""

    def __init__(self, conversation: Conversation) -> None:
        self.reply: Reply | None = None
        self.error: BaseException | None = None
        self._conversation = conversation
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> Reply:
        self._thread.join(GENEROUS_SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.reply is not None
        return self.reply

    def _run(self) -> None:
        try:
            self.reply = self._conversation.sample()
        except (Cancelled, BackendError) as error:
            self.error = error


@pytest.fixture
def gate() -> Turnstile:
    return Turnstile(12)


@pytest.fixture
def converse(stub: Stub, tokenizer_dir: Path, model_loop: ModelLoop, cancel: Signal, gate: Turnstile) -> Any:
    def make(mode: str = "tokens", **endpoint: Any) -> Conversation:
        fields = {"url": stub.url, "model": "m", "tokenizer": str(tokenizer_dir), **endpoint}
        request = ConversationRequest(
            job_id="job-1", messages=MESSAGES, sampling=SamplingParams(max_tokens=64), model_loop=model_loop,
            cancel=cancel, deadline=lambda: GENEROUS_SECONDS, tools=(BASH,), gate=gate,
        )  # fmt: skip
        return open_conversation(Endpoint(**fields), request, mode=mode)

    return make


class Slow:
    """A stub's answers, each held back until the test lets it go."""

    def __init__(self, stub: Stub) -> None:
        self.came = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.given_up: list[Any] = []
        stub.answer = self.answer

    async def answer(self, body: dict[str, Any]) -> Any:
        if "request_ids" in body:
            return web.Response(status=404)
        self.came.release()
        while not self.go.acquire(blocking=False):
            await asyncio.sleep(0.005)
        return completion([5, 6, 2], prompt=body.get("prompt"))


def test_a_call_carries_the_version_and_the_salt_of_its_moment(converse: Any, stub: Stub, gate: Turnstile) -> None:
    stub.answer = lambda body: completion([5, 6, 2], prompt=body["prompt"])
    conversation = converse(policy_version=3)
    gate.version = 13
    reply = conversation.sample()
    assert list(reply.versions) == [13, 13, 13]
    assert reply.policy_version == 13
    assert stub.bodies[0]["cache_salt"] == "v13"


def test_a_call_that_is_interrupted_is_made_again_when_the_gate_is_open(
    converse: Any, stub: Stub, gate: Turnstile
) -> None:
    slow = Slow(stub)
    sampling = Sampling(converse())
    assert slow.came.acquire(timeout=GENEROUS_SECONDS)
    gate.open.clear()
    gate.passages[0].interrupt("abort")
    assert stub.aborted.wait(GENEROUS_SECONDS)
    assert not slow.came.acquire(timeout=0.3)  # held: no second call beside the first, nor behind it
    gate.version = 13
    slow.go.release()
    gate.open.set()
    reply = sampling.join()
    assert list(reply.sampled_ids) == [5, 6, 2]
    assert list(reply.versions) == [13, 13, 13]
    asked = [body for body in stub.bodies if "prompt" in body]
    assert [body["cache_salt"] for body in asked] == ["v12", "v13"]
    assert asked[0]["prompt"] == asked[1]["prompt"]


def test_a_call_in_flight_ends_by_itself_when_it_is_asked_to_finish(converse: Any, stub: Stub, gate: Turnstile) -> None:
    slow = Slow(stub)
    sampling = Sampling(converse())
    assert slow.came.acquire(timeout=GENEROUS_SECONDS)
    gate.passages[0].interrupt("finish")
    slow.go.release()
    assert list(sampling.join().versions) == [12, 12, 12]
    assert not stub.aborted.is_set()
    assert len(stub.bodies) == 1


def test_a_call_that_waits_to_try_again_does_not_outlast_the_wish_to_finish(
    converse: Any, stub: Stub, gate: Turnstile
) -> None:
    stub.answer = lambda body: web.Response(status=503, headers={"Retry-After": "30"})
    sampling = Sampling(converse())
    assert stub.arrived.wait(GENEROUS_SECONDS)
    gate.open.clear()
    gate.passages[0].interrupt("finish")
    stub.answer = lambda body: completion([5, 6, 2], prompt=body["prompt"])
    gate.open.set()
    assert list(sampling.join().sampled_ids) == [5, 6, 2]
    assert len(gate.passages) == 2


def test_a_cancel_ends_a_call_that_is_interrupted_too(
    converse: Any, stub: Stub, gate: Turnstile, cancel: Signal
) -> None:
    slow = Slow(stub)
    sampling = Sampling(converse())
    assert slow.came.acquire(timeout=GENEROUS_SECONDS)
    gate.passages[0].interrupt("finish")
    cancel.set()
    with pytest.raises(Cancelled):
        sampling.join()
    assert stub.aborted.wait(GENEROUS_SECONDS)
    assert gate.in_flight == 0


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("vllm", "tokens"), pytest.param("vllm_generate", "tokens", marks=pytest.mark.slow), ("vllm", "chat")],
)
def test_what_an_engine_had_when_it_gave_a_call_up_stands(
    kind: str, mode: str, model_loop: ModelLoop, cancel: Signal, gate: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorl_celery.llm.gate.GIVE_UP_SECONDS", GENEROUS_SECONDS)
    monkeypatch.setattr("prorl_celery.llm.abort.ASK_SECONDS", GENEROUS_SECONDS)
    with ScriptedBackend(policy="loop", record=10) as backend:
        backend.fail("slow", count=1, seconds=20.0)
        endpoint = Endpoint(url=backend.url, model=backend.model, kind=kind, tokenizer=str(backend.tokenizer_dir))
        request = ConversationRequest(
            job_id="job-1", messages=MESSAGES, sampling=SamplingParams(), model_loop=model_loop, cancel=cancel,
            deadline=lambda: 60.0, tools=(BASH,), gate=gate,
        )  # fmt: skip
        conversation = open_conversation(endpoint, request, mode=mode)
        sampling = Sampling(conversation)
        assert wait_for(lambda: backend.stats()["live"] == 1)
        threading.Event().wait(2.0)  # by now it has sampled some
        gate.open.clear()
        gate.passages[0].interrupt("abort")
        assert wait_for(lambda: backend.stats()["live"] == 0)
        gate.version = 13
        gate.open.set()
        reply = sampling.join()
        first, second = backend.calls()
    assert reply.finish_reason == ("tool_calls" if mode == "chat" else "stop")
    assert [first["cache_salt"], second["cache_salt"]] == ["v12", "v13"]
    if mode == "chat":  # messages cannot go on from half a reply
        assert first["outcome"] == "disconnect"
        assert second["prompt_ids"] == first["prompt_ids"]
        assert list(reply.sampled_ids) == second["sampled_ids"]
        return
    assert 0 < len(first["sampled_ids"]) < len(reply.sampled_ids)
    assert second["prompt_ids"] == first["prompt_ids"] + first["sampled_ids"]
    assert list(reply.sampled_ids) == first["sampled_ids"] + second["sampled_ids"]
    if kind == "vllm":  # the other wire tells versions itself
        kept = len(first["sampled_ids"])
        assert list(reply.versions) == [12] * kept + [13] * (len(reply.sampled_ids) - kept)


def wait_for(true: Any) -> bool:
    pause = threading.Event()
    for _ in range(6000):
        if true():
            return True
        pause.wait(0.01)
    return False
