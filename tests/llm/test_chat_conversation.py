"""Chat mode through the openai client, against a backend that really listens."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from llm_stub import BASH, Signal, Stub

from prorl_celery.errors import BackendError, Cancelled, ContextOverflow, StageTimeout
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm import chat, chat_wire, wire
from prorl_celery.llm.chat import ChatConversation
from prorl_celery.llm.chat_wire import ChatReply, ChatRequest
from prorl_celery.llm.conversation import TokenConversation, open_conversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.request import ConversationRequest

MESSAGES = [{"role": "user", "content": "List the files."}]
CALLS = [{"id": "call-a", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]
Make = Callable[..., ChatConversation]


@pytest.fixture
def make(stub: Stub, model_loop: ModelLoop, cancel: Signal) -> Make:
    def make(seconds: float = 30.0, **options: Any) -> ChatConversation:
        endpoint = {"url": stub.url + "/v1", "model": "m", "policy_version": 3, "api_key": "k"}
        endpoint |= options.pop("endpoint", {})
        sampling = SamplingParams(**options.pop("sampling", {}))
        request = ConversationRequest(
            job_id="job-1", messages=MESSAGES, sampling=sampling, model_loop=model_loop, cancel=cancel,
            deadline=lambda: seconds, tools=(BASH,), **options,
        )  # fmt: skip
        return ChatConversation(Endpoint(**endpoint), request)

    return make


def answer(
    *, content: str | None = "", calls: Any = None, prompt: list[int] | None = None, ids: Any = None, **more: Any
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": "tool_calls" if calls else "stop",
        "message": {"role": "assistant", "content": content, "tool_calls": calls} | more,
    }
    if ids is not None:
        choice["token_ids"] = ids
        choice["logprobs"] = {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}
    return {
        "object": "chat.completion",
        "choices": [choice],
        "prompt_token_ids": prompt,
        "usage": {"prompt_tokens": 30, "completion_tokens": 4},
    }


def test_turns_carry_the_ids_that_the_server_gives(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: answer(content="I look.", calls=CALLS, prompt=[1, 2, 3], ids=[4, 5])
    conversation = make(sampling={"seed": 7, "top_k": 20})
    first = conversation.sample()
    assert first.calls[0].arguments == {"command": "ls"}
    assert (first.new_segment, first.split_reason) == (True, None)
    assert (list(first.delta_ids), list(first.sampled_ids), list(first.versions)) == ([1, 2, 3], [4, 5], [3, 3])
    assert list(first.logprobs) == [-0.5, -0.5]
    assert first.messages[-1] == {"role": "assistant", "content": "I look.", "tool_calls": CALLS}
    conversation.observe([(first.calls[0], "a.txt")])
    stub.answer = lambda body: answer(content="Done.", prompt=[1, 2, 3, 4, 5, 6], ids=[7])
    second = conversation.sample()
    assert (second.new_segment, list(second.delta_ids)) == (False, [6])
    assert stub.paths == ["/v1/chat/completions"] * 2
    body, again = stub.bodies
    assert body["messages"] == MESSAGES
    assert body["tools"] == [BASH]
    assert (body["return_token_ids"], body["logprobs"], body["top_k"], body["seed"]) == (True, True, 20, 7)
    assert again["seed"] != 7
    assert [message["role"] for message in again["messages"]] == ["user", "assistant", "tool"]
    assert again["messages"][2] == {"role": "tool", "tool_call_id": "call-a", "content": "a.txt"}
    assert stub.headers[0]["Authorization"] == "Bearer k"
    assert stub.headers[0]["X-Request-Id"] != stub.headers[1]["X-Request-Id"]


def test_a_prompt_that_does_not_begin_with_the_tokens_so_far_starts_a_segment(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: answer(calls=CALLS, prompt=[1, 2, 3], ids=[4, 5])
    conversation = make()
    conversation.observe([(conversation.sample().calls[0], "x")])
    stub.answer = lambda body: answer(calls=CALLS, prompt=[1, 2, 3, 4, 9, 6], ids=[7])
    second = conversation.sample()
    assert (second.new_segment, second.split_reason, list(second.delta_ids)) == (
        True,
        "prompt_drift",
        [1, 2, 3, 4, 9, 6],
    )
    conversation.observe([(second.calls[0], "x")])
    stub.answer = lambda body: answer(prompt=[1, 2, 3, 4, 9, 6, 7, 8], ids=[7])
    third = conversation.sample()
    assert (third.new_segment, list(third.delta_ids)) == (False, [8])


def test_a_backend_without_ids_gives_turns_without_them_and_is_not_asked(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: answer(content="Hi.")
    reply = make(endpoint={"gives_ids": False}).sample()
    assert (len(reply.delta_ids), len(reply.sampled_ids), len(reply.logprobs)) == (0, 0, 0)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.text) == (30, 4, "Hi.")
    assert not {"return_token_ids", "logprobs", "min_p"} & set(stub.bodies[0])


def test_calls_and_thoughts_that_the_server_left_in_the_text_are_read_here(make: Make, stub: Stub) -> None:
    content = '<think>hm</think>I look.<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    stub.answer = lambda body: answer(content=content)
    conversation = make(endpoint={"gives_ids": False})
    reply = conversation.sample()
    assert reply.calls[0].name == "bash"
    assert reply.messages[-1]["reasoning_content"] == "hm"
    conversation.observe([(reply.calls[0], "x")])
    conversation.sample()
    assert stub.bodies[1]["messages"][1] == {"role": "assistant", "content": content}


def test_a_server_without_a_parser_for_calls_leaves_them_in_the_text(make: Make, stub: Stub) -> None:
    """vLLM that is started without `--tool-call-parser` refuses every request that has tools."""

    def served(body: dict[str, Any]) -> Any:
        if body.get("tool_choice", "auto") == "auto":
            refusal = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            return web.json_response({"error": {"message": refusal, "code": 400}}, status=400)
        return answer(content='<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>')

    stub.answer = served
    conversation = make(endpoint={"gives_ids": False})
    reply = conversation.sample()
    assert (reply.calls[0].name, reply.calls[0].arguments) == ("bash", {"command": "ls"})
    conversation.observe([(reply.calls[0], "x")])
    conversation.sample()
    make(endpoint={"gives_ids": False}).sample()
    assert [body.get("tool_choice") for body in stub.bodies] == [None, "none", "none", "none"]
    assert all(body["tools"] for body in stub.bodies)


def test_another_refusal_is_asked_once(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: web.json_response({"error": {"message": "no such tool choice"}}, status=400)
    with pytest.raises(BackendError, match="no such tool choice"):
        make(endpoint={"gives_ids": False}).sample()
    assert len(stub.bodies) == 1


def test_a_call_that_cannot_be_read_is_told_and_goes_back_as_an_object(make: Make, stub: Stub) -> None:
    broken = [{"id": "call-a", "type": "function", "function": {"name": "bash", "arguments": '{"command": '}}]
    stub.answer = lambda body: answer(content=None, calls=broken, reasoning_content="hm")
    conversation = make(endpoint={"gives_ids": False})
    reply = conversation.sample()
    assert reply.calls[0].error is not None
    assert reply.messages[-1]["tool_calls"][0]["function"]["arguments"] == '{"command": '
    conversation.observe([(reply.calls[0], reply.calls[0].error)])
    conversation.sample()
    sent = stub.bodies[1]["messages"][1]
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"unreadable": '{"command": '}
    assert sent["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    "reply",
    [
        lambda: web.Response(text="<html>", content_type="text/html"),
        lambda: web.Response(text='{"choices": [', content_type="application/json"),
        lambda: {"error": {"message": "boom"}},
        lambda: {"choices": []},
        lambda: {"choices": [{"finish_reason": "stop", "message": None}]},
        lambda: {"choices": [{"finish_reason": "stop", "message": {"content": 5}}]},
        lambda: answer(content="x"),  # a backend that gives ids gave none
        lambda: answer(content="x", ids=[1, 2]),  # but no prompt ids
        lambda: answer(content="x", prompt=[1], ids=[-1]),
        lambda: answer(content="x", prompt=[1], ids=[]),  # a turn without a token
        lambda: answer(content="x", prompt=[], ids=[1]),
        lambda: answer(content="x", prompt=[1], ids=[1] * 5000),  # more than were allowed
        lambda: answer(content="x", calls=[{"function": None}], prompt=[1], ids=[1]),
        lambda: web.Response(status=404, text="no such model"),
        lambda: web.Response(status=500, text="oops"),
        lambda: web.Response(text=" " * (30 << 20), content_type="application/json"),
    ],
)
def test_nonsense_is_a_backend_error(
    reply: Callable[[], Any], make: Make, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.01)
    stub.answer = lambda body: reply()
    with pytest.raises(BackendError, match=r"127\.0\.0\.1"):
        make().sample()


def test_a_backend_that_is_not_there_or_busy_is_asked_again(
    make: Make, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.01)
    with pytest.raises(BackendError, match="did not answer"):
        make(endpoint={"url": "http://127.0.0.1:9"}).sample()
    replies: list[Any] = [web.Response(status=503, headers={"Retry-After": "0"}), answer(prompt=[1], ids=[2])]
    stub.answer = lambda body: replies.pop(0)
    assert list(make().sample().sampled_ids) == [2]


def test_an_aborted_reply_is_asked_for_again(make: Make, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.01)
    aborted = answer(content="ha", prompt=[1], ids=[2])
    aborted["choices"][0]["finish_reason"] = "abort"
    replies = [aborted, answer(content="whole", prompt=[1], ids=[2, 3])]
    for reply, cached in zip(replies, (0, 1), strict=True):
        reply["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    stub.answer = lambda body: replies.pop(0)
    conversation = make()
    began = time.monotonic()
    reply = conversation.sample()
    assert reply.text == "whole"
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (1, 2, 0)
    assert 0 < reply.llm_s < time.monotonic() - began


def test_the_seconds_of_a_turn_are_those_of_all_its_calls(
    make: Make, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.01)
    took = [1.0, 2.0, 4.0]

    async def timed(loop: ModelLoop, endpoint: Endpoint, request: ChatRequest) -> ChatReply:
        reply = await chat_wire.chat(loop, endpoint, request)
        return replace(reply, seconds=took.pop(0), finish_reason="abort" if len(took) == 2 else "stop")

    monkeypatch.setattr(chat, "chat", timed)
    stub.answer = lambda body: answer(calls=CALLS, prompt=[1], ids=[2])
    conversation = make()
    first = conversation.sample()
    conversation.observe([(first.calls[0], "x")])
    assert (first.llm_s, conversation.sample().llm_s) == (3.0, 4.0)


def test_a_full_context_overflows_before_and_after_the_first_turn(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: web.json_response({"error": {"code": "context_length_exceeded"}}, status=400)
    with pytest.raises(ContextOverflow):
        make().sample()
    stub.answer = lambda body: answer(calls=CALLS, prompt=[1] * 8, ids=[4] * 2)
    conversation = make(max_context_tokens=10)
    conversation.observe([(conversation.sample().calls[0], "x")])
    assert stub.bodies[-1]["max_tokens"] == 10
    with pytest.raises(ContextOverflow):
        conversation.sample()


def test_a_cancel_frees_the_caller_and_closes_the_connection(make: Make, stub: Stub, cancel: Signal) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    stub.answer = lambda body: never()
    with pytest.raises(StageTimeout):
        make(seconds=2.0).sample()  # long enough for the call to arrive
    assert stub.aborted.wait(5)
    stub.aborted.clear()
    stub.arrived.clear()

    def press() -> float:
        assert stub.arrived.wait(10)
        cancel.set()
        return time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press)
        with pytest.raises(Cancelled):
            make().sample()
        assert time.monotonic() - pressed.result() < 1.0
    assert stub.aborted.wait(1.0)


def test_the_mode_and_what_the_endpoint_can_do_decide_the_form(
    stub: Stub, model_loop: ModelLoop, cancel: Signal, tokenizer_dir: Any
) -> None:
    def opened(mode: str | None, **endpoint: Any) -> type:
        request = ConversationRequest(
            job_id="job-1", messages=MESSAGES, sampling=SamplingParams(), model_loop=model_loop, cancel=cancel,
            deadline=lambda: 1.0,
        )  # fmt: skip
        return type(open_conversation(Endpoint(url=stub.url, model="m", **endpoint), request, mode=mode))

    assert opened(None, tokenizer=str(tokenizer_dir)) is TokenConversation
    assert opened("chat", tokenizer=str(tokenizer_dir)) is ChatConversation
    assert opened(None) is ChatConversation
    assert opened(None, kind="chat") is ChatConversation
    with pytest.raises(BackendError, match="tokenizer"):
        opened("tokens")


def test_a_worker_in_token_mode_imports_neither_openai_nor_transformers() -> None:
    code = (
        "import sys, prorl_celery.agents.loop; print(sorted({'openai', 'httpx2', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
