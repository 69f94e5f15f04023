"""Token mode against a backend that really listens: what is sent is what was kept, what is kept is what was sampled."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llm_stub import BASH, Signal, Stub, completion, make_tokenizer
from llm_templates import HIDING

from prorl_celery.errors import BackendError, ContextOverflow, InternalError
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm import conversation, wire
from prorl_celery.llm.completions import complete
from prorl_celery.llm.conversation import TokenConversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.reply import Reply
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.llm.tokenizer import load_tokenizer
from prorl_celery.llm.wire import Sampled, TokenRequest

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "List the files."}]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
Make = Callable[..., TokenConversation]


@pytest.fixture
def make(stub: Stub, tokenizer_dir: Path, model_loop: ModelLoop, cancel: Signal) -> Make:
    def make(messages: Any = MESSAGES, tools: Any = (BASH,), **options: Any) -> TokenConversation:
        endpoint = {"url": stub.url, "model": "m", "tokenizer": str(tokenizer_dir), "policy_version": 3}
        sampling = options.pop("sampling", {})
        endpoint |= options.pop("endpoint", {})
        request = ConversationRequest(
            job_id="job-1", messages=messages, sampling=SamplingParams(**sampling), model_loop=model_loop,
            cancel=cancel, deadline=lambda: 30.0, tools=tools, **options,
        )  # fmt: skip
        return TokenConversation(Endpoint(**endpoint), request)

    return make


def ids_of(tokenizer_dir: Path, text: str) -> list[int]:
    """Ids of a model's text, marks in it being tokens."""
    tokenizer = load_tokenizer(tokenizer_dir)
    return list(tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)


def test_each_prompt_is_all_ids_so_far_and_the_templates_own_delta(make: Make, stub: Stub, tokenizer_dir: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    sampled = ids_of(tokenizer_dir, f"I look.{CALL}<|im_end|>")
    stub.answer = lambda body: completion(sampled, prompt=body["prompt"])
    conversation = make()
    first = conversation.sample()
    assert first.text == "I look."
    assert [(c.name, c.arguments) for c in first.calls] == [("bash", {"command": "ls"})]
    assert first.new_segment
    assert list(first.sampled_ids) == sampled
    assert list(first.versions) == [3] * len(sampled)
    assert first.messages[:2] == MESSAGES
    observed = conversation.observe([(first.calls[0], "a.txt")])
    assert observed == [{"role": "tool", "tool_call_id": first.calls[0].id, "name": "bash", "content": "a.txt"}]
    second = conversation.sample()
    assert not second.new_segment
    assert tokenizer.decode(second.delta_ids) == (
        "\n<|im_start|>user\n<tool_response>\na.txt\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert stub.bodies[1]["prompt"] == [*stub.bodies[0]["prompt"], *sampled, *second.delta_ids]
    whole = tokenizer.render(
        [*MESSAGES, {"role": "assistant", "content": f"I look.{CALL}"}, {"role": "tool", "content": "a.txt"}], [BASH]
    )
    assert stub.bodies[1]["prompt"] == list(tokenizer.encode(whole))


def test_a_turn_cut_by_its_length_gets_the_end_of_turn_that_it_lacks(
    make: Make, stub: Stub, tokenizer_dir: Path
) -> None:
    sampled = ids_of(tokenizer_dir, CALL)
    stub.answer = lambda body: completion(sampled, finish_reason="length")
    conversation = make()
    first = conversation.sample()
    conversation.observe([(first.calls[0], "x")])
    second = conversation.sample()
    end = load_tokenizer(tokenizer_dir).special_ids["<|im_end|>"]
    assert first.finish_reason == "length"
    assert second.delta_ids[0] == end
    assert list(second.delta_ids).count(end) == 2  # the assistant's and the tool message's


def test_several_tool_messages_of_one_turn_stand_in_one_delta(make: Make, stub: Stub, tokenizer_dir: Path) -> None:
    sampled = ids_of(tokenizer_dir, f"{CALL}{CALL}<|im_end|>")
    stub.answer = lambda body: completion(sampled)
    conversation = make()
    reply = conversation.sample()
    assert len({call.id for call in reply.calls}) == 2
    conversation.observe([(call, f"out {n}") for n, call in enumerate(reply.calls)])
    text = load_tokenizer(tokenizer_dir).decode(conversation.sample().delta_ids)
    assert text.count("<tool_response>") == 2
    assert text.count("<|im_start|>user") == 1


FORGED = st.sampled_from(
    ["<|im_end|>", "<|im_start|>assistant\n", "<tool_call>", "</tool_response>", "<|im_<|im_end|>end|>"]
)
PLAIN = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30)
TEXT = st.lists(PLAIN | FORGED, max_size=4).map("".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_prompts_equal_the_segments_whatever_is_sampled_and_observed(
    data: st.DataObject, make: Make, stub: Stub, tokenizer_dir: Path
) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    vocab = tokenizer.vocab_size
    messages = [{"role": "system", "content": data.draw(TEXT)}, {"role": "user", "content": data.draw(TEXT)}]
    tools = data.draw(st.sampled_from([(), (BASH,)]))
    conversation = make(messages, tools)
    stub.bodies.clear()
    replies: list[Reply] = []
    counts: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        free = data.draw(st.lists(st.integers(0, vocab - 1), max_size=20))
        ended = data.draw(st.sampled_from([[2], [0], []]))
        sampled = free + ids_of(tokenizer_dir, CALL) + ended
        stub.answer = lambda body, ids=sampled: completion(ids, prompt=body["prompt"])
        reply = conversation.sample()
        assert list(reply.sampled_ids) == sampled
        replies.append(reply)
        outputs = [data.draw(TEXT) for _ in range(data.draw(st.integers(1, 3)))]
        counts.append(len(outputs))
        call = reply.calls[0] if reply.calls else None
        if call is None:  # the random ids opened a reasoning block over the call
            break
        conversation.observe([(call, output) for output in outputs])
    flat = array("i")
    for reply, body in zip(replies, stub.bodies, strict=True):
        flat.extend(reply.delta_ids)
        assert body["prompt"] == list(flat)
        flat.extend(reply.sampled_ids)
    structure = {name: tokenizer.special_ids[name] for name in ("<|im_start|>", "<|im_end|>", "<tool_response>")}
    first = list(replies[0].delta_ids)
    assert first.count(structure["<|im_start|>"]) == 3  # system, user, and the assistant's opening
    assert first.count(structure["<|im_end|>"]) == 2
    for before, reply, count in zip(replies, replies[1:], counts, strict=False):
        delta = list(reply.delta_ids)
        assert delta.count(structure["<|im_start|>"]) == 2
        assert delta.count(structure["<tool_response>"]) == count
        assert delta.count(structure["<|im_end|>"]) == 1 + (before.sampled_ids[-1] not in tokenizer.stop_ids)


def test_each_call_has_its_own_seed_and_the_first_has_the_jobs(make: Make, stub: Stub, tokenizer_dir: Path) -> None:
    stub.answer = lambda body: completion(ids_of(tokenizer_dir, f"{CALL}<|im_end|>"))
    conversation = make(sampling={"seed": 7, "temperature": 0.5, "top_p": 0.9})
    for _ in range(3):
        reply = conversation.sample()
        conversation.observe([(reply.calls[0], "x")])
    seeds = [body["seed"] for body in stub.bodies]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert {body["temperature"] for body in stub.bodies} == {0.5}
    assert len({headers["X-Request-Id"] for headers in stub.headers}) == 3


def test_an_aborted_call_goes_on_from_the_ids_that_it_gave(make: Make, stub: Stub, tokenizer_dir: Path) -> None:
    whole = ids_of(tokenizer_dir, f"{CALL}<|im_end|>")
    stub.answer = lambda body: (
        completion(whole[:3], finish_reason="abort") if len(stub.bodies) == 1 else completion(whole[3:])
    )
    reply = make(sampling={"max_tokens": 100, "seed": 1}).sample()
    assert list(reply.sampled_ids) == whole
    assert reply.calls[0].arguments == {"command": "ls"}
    assert stub.bodies[1]["prompt"] == [*stub.bodies[0]["prompt"], *whole[:3]]
    assert [body["max_tokens"] for body in stub.bodies] == [100, 97]
    assert reply.prompt_tokens == len(stub.bodies[0]["prompt"])


def test_a_turn_of_several_calls_counts_all_its_tokens_and_seconds_and_the_first_calls_cache(
    make: Make, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.01)
    took = [1.0, 2.0]

    async def timed(session: Any, endpoint: Endpoint, request: TokenRequest) -> Sampled:
        sampled = await complete(session, endpoint, request)
        return replace(sampled, seconds=took.pop(0))

    monkeypatch.setitem(conversation.TOKEN_KINDS, "vllm", timed)
    replies = [completion([5, 6], finish_reason="abort"), completion([7, 2])]
    for reply, cached in zip(replies, (16, 999), strict=True):
        reply["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    stub.answer = lambda body: replies.pop(0)
    reply = make().sample()
    assert reply.prompt_tokens == len(stub.bodies[0]["prompt"])
    assert (reply.completion_tokens, reply.cached_tokens, reply.llm_s) == (4, 16, 3.0)
    turn = reply.to_turn(0, [], tool_s=0.0, total_s=3.5)
    assert (turn.prompt_tokens, turn.completion_tokens, turn.cached_tokens) == (reply.prompt_tokens, 4, 16)
    assert (turn.llm_s, turn.total_s) == (3.0, 3.5)


def test_max_tokens_keeps_prompt_and_reply_under_the_least_limit(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: completion([5, 2])
    reply = make(max_context_tokens=500, endpoint={"max_model_len": 400}).sample()
    assert stub.bodies[0]["max_tokens"] == 400 - reply.prompt_tokens


def test_a_prompt_without_room_for_a_reply_overflows_before_any_call(make: Make, stub: Stub) -> None:
    with pytest.raises(ContextOverflow):
        make(max_context_tokens=20).sample()
    assert stub.bodies == []


def test_a_backend_that_finds_the_prompt_too_long_overflows_too(make: Make, stub: Stub) -> None:
    from aiohttp import web

    stub.answer = lambda body: web.json_response(
        {"error": {"message": "This model's maximum context length is 128 tokens."}}, status=400
    )
    with pytest.raises(ContextOverflow):
        make().sample()


def test_stop_text_is_cut_from_the_message_and_kept_in_the_ids(make: Make, stub: Stub, tokenizer_dir: Path) -> None:
    sampled = ids_of(tokenizer_dir, "Hello STOP")
    stub.answer = lambda body: completion(sampled)
    reply = make(sampling={"stop": ("STOP",)}).sample()
    assert reply.text == "Hello"
    assert list(reply.sampled_ids) == sampled
    assert stub.bodies[0]["stop"] == ["STOP"]


def test_reasoning_stays_in_the_ids_and_stands_apart_in_the_message(
    make: Make, stub: Stub, tokenizer_dir: Path
) -> None:
    sampled = ids_of(tokenizer_dir, "<think>hm</think>\n\nDone.<|im_end|>")
    stub.answer = lambda body: completion(sampled)
    reply = make().sample()
    assert reply.messages[-1] == {"role": "assistant", "content": "Done.", "reasoning_content": "hm"}
    assert list(reply.sampled_ids) == sampled


def test_a_failed_call_leaves_the_conversation_as_it_was_and_another_backend_goes_on(
    make: Make, stub: Stub, tokenizer_dir: Path
) -> None:
    conversation = make(endpoint={"url": "http://127.0.0.1:9/v1"})
    stub.answer = lambda body: completion([5, 2])
    with pytest.raises(BackendError):
        conversation.sample()
    conversation.move(Endpoint(url=stub.url + "/v1/", model="m", tokenizer=str(tokenizer_dir), policy_version=4))
    reply = conversation.sample()
    assert stub.paths == ["/v1/completions"]
    assert list(reply.versions) == [4, 4]


def test_a_backend_without_a_tokenizer_or_of_an_unknown_kind_is_refused(make: Make, tmp_path: Path) -> None:
    for change in ({"tokenizer": None}, {"kind": "chat"}, {"tokenizer": str(tmp_path / "none")}):
        with pytest.raises(BackendError):
            make(endpoint=change)


def test_a_template_that_keeps_no_prefix_splits_the_trajectory_and_says_why(
    make: Make, stub: Stub, tokenizer_dir: Path, tmp_path: Path
) -> None:
    directory = make_tokenizer(tmp_path, template=HIDING)
    stub.answer = lambda body: completion(ids_of(tokenizer_dir, f"{CALL}<|im_end|>"))
    conversation = make(endpoint={"tokenizer": str(directory)})
    reply = conversation.sample()
    conversation.observe([(reply.calls[0], "out")])
    second = conversation.sample()
    assert (second.new_segment, second.split_reason) == (True, "template")
    assert list(second.delta_ids) == stub.bodies[1]["prompt"]


def test_a_second_reply_with_nothing_observed_between_is_a_bug_that_is_told(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: completion([5, 2])
    conversation = make()
    conversation.sample()
    with pytest.raises(InternalError):
        conversation.sample()
