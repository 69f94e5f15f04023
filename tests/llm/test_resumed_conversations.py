"""Rollouts whose process is killed at any instant, and that another process goes on with: in the end the log is that of
a rollout that nobody disturbed, the backend is asked nothing that it had answered into the log, and no call of a tool
is made twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from llm_stub import BASH, CHATML, Signal, Stub, completion, make_tokenizer
from mortal_rollouts import MAX_TURNS, Bench, Open, Oracle, killed_at, undisturbed

from prorl_celery.errors import ContextOverflow
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.conversation import Conversation, open_conversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.llm.tokenizer import load_tokenizer

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
FORGED = st.sampled_from(["<|im_end|>", "<|im_start|>assistant\n", "<tool_call>", "</tool_response>", "SPLIT", "SPLIT"])
WORDS = st.lists(TEXT | FORGED, max_size=3).map("".join)


def ids_of(directory: Path, text: str) -> list[int]:
    return list(load_tokenizer(directory)._tokenizer.encode(text, add_special_tokens=False).ids)


def spoken(directory: Path) -> st.SearchStrategy[list[int]]:
    """What a model may sample: words, odd ids, calls good and bad, ended or cut."""
    call = st.builds(lambda text: {"name": "bash", "arguments": {"command": text}}, WORDS | st.just("SPLIT"))
    thought = st.just({"name": "think", "arguments": {}})
    end = st.builds(lambda text: {"name": "finish", "arguments": {"answer": text}}, WORDS)
    calls = st.lists(call | call | call | thought | end, min_size=1, max_size=3).map(
        lambda calls: "".join(f"<tool_call>\n{json.dumps(one)}\n</tool_call>" for one in calls)
    )
    broken = st.just('<tool_call>{"name": "bash", "arg</tool_call>')
    odd = st.lists(st.integers(30, 300), max_size=6)
    marks = st.sampled_from([[2], [0], []])
    text = st.one_of(calls, calls, calls, broken, st.tuples(calls, broken).map("".join), st.just("Done."))
    ids = text.map(lambda said: ids_of(directory, said))
    return st.tuples(odd, ids, marks).map(lambda parts: [i for part in parts for i in part])


SPLITTING = (
    """\
{%- if 'SPLIT' in messages[-1].content %}{{ messages | length }}
{%- for message in messages if message.role != 'assistant' %}{{ message.content }}<|im_end|>{%- endfor %}
{%- else %}"""
    + CHATML
    + """{%- endif %}"""
)
"""Keeps a prefix but where a tool has said so: then all is rendered anew, and a new segment begins."""


@pytest.fixture(scope="module")
def splitting_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("splitting") / "splitting", template=SPLITTING)


def opener(stub: Stub, directory: Path, model_loop: ModelLoop, cancel: Signal, **more: Any) -> Open:
    """Opens conversations in token mode."""
    endpoint = Endpoint(url=stub.url, model="m", tokenizer=str(directory), policy_version=3)

    def opened(question: str) -> Conversation:
        request = ConversationRequest(
            job_id="job-1", messages=[{"role": "user", "content": question}], model_loop=model_loop, cancel=cancel,
            sampling=SamplingParams(seed=7, stop=["STOP"]), deadline=lambda: 30.0, tools=(BASH,), **more,
        )  # fmt: skip
        return open_conversation(endpoint, request)

    return opened


def sampling(ids: list[int]) -> Any:
    """A backend's answer that samples these."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        said = ids[: body["max_tokens"]]
        logprobs = {"token_logprobs": [-0.25 * n for n in range(len(said))]}
        return completion(said, prompt=body["prompt"], finish_reason="length", logprobs=logprobs)

    return answer


def compare(stub: Stub, bench: Bench, oracle: Oracle, data: st.DataObject) -> None:
    """Play undisturbed, then with kills, and compare."""
    try:
        plain = undisturbed(stub, bench, oracle)
    except ContextOverflow:
        assume(False)  # not even the first prompt fits
    assume(len(plain.asked) == plain.asked.total())  # else a request would not tell which turn it is of
    cuts = st.lists(st.integers(0, plain.steps), min_size=1, max_size=3)
    killed_at(data.draw(cuts, label="killed at step"), plain, stub, bench, oracle)


@pytest.mark.parametrize("template", ["chatml", "splitting"])
@FEW
@given(data=st.data())
def test_in_token_mode_a_killed_rollout_ends_as_one_that_was_not(
    data: st.DataObject, template: str, stub: Stub, tokenizer_dir: Path, splitting_dir: Path, model_loop: ModelLoop,
    cancel: Signal,
) -> None:  # fmt: skip
    directory = tokenizer_dir if template == "chatml" else splitting_dir
    script = spoken(directory)
    limit = data.draw(st.sampled_from([None, 400]), label="context")
    opened = opener(stub, directory, model_loop, cancel, max_context_tokens=limit)
    questions = data.draw(st.lists(WORDS, min_size=1, max_size=2), label="questions")
    replies = [sampling(data.draw(script, label="reply") or [40]) for _ in range(MAX_TURNS * len(questions))]
    compare(stub, Bench(opened, cancel, questions), Oracle(stub, replies), data)


@pytest.mark.parametrize("template", ["chatml", "splitting"])
def test_in_token_mode_it_does_so_wherever_it_is_killed(
    template: str, stub: Stub, tokenizer_dir: Path, splitting_dir: Path, model_loop: ModelLoop, cancel: Signal
) -> None:
    directory = tokenizer_dir if template == "chatml" else splitting_dir

    def says(*commands: str) -> Any:
        calls = [{"name": "bash", "arguments": {"command": command}} for command in commands]
        text = "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
        return sampling([*ids_of(directory, text), 2])

    replies = [says("one"), says("SPLIT"), says("two", "three"), says("four")]
    bench = Bench(opener(stub, directory, model_loop, cancel), cancel, ["Go."])
    oracle = Oracle(stub, replies)
    plain = undisturbed(stub, bench, oracle)
    split = [False, False, True, False] if template == "splitting" else [False] * 4
    assert [turn.split_reason == "template" for turn in plain.world.turns] == split
    assert plain.steps == 2 * 4 + 2 * 4 + 5 * 5  # a reply, its write; a call, its write
    for at in range(plain.steps):
        killed_at([at], plain, stub, bench, oracle)


class Rendered:
    """How a chat server renders messages: to ids that begin with those it has sampled, or (not `keeps`) to others."""

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = {}

    def prompt(self, messages: list[dict[str, Any]], *, keeps: bool) -> list[int]:
        spoken = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        before = self._known.get(json.dumps(messages[: spoken[-1]])) if spoken and keeps else None
        new = messages if before is None else messages[spoken[-1] + 1 :]
        return [*(before or [keeps]), *(len(json.dumps(message)) % 200 for message in new)]

    def sampled(self, messages: list[dict[str, Any]], ids: list[int]) -> None:
        self._known[json.dumps(messages)] = ids


def said(
    rendered: Rendered,
    number: int,
    *,
    keeps: bool,
    ids: list[int] | None,
    content: str,
    calls: list[tuple[str, str]],
    reasoning: str | None,
) -> Any:
    """A reply of a chat server; `number` makes the ids of its calls its own."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning}
        if calls:
            message["tool_calls"] = [
                {"id": f"call-{number}-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for n, (name, arguments) in enumerate(calls)
            ]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
        prompt = None
        if ids is not None:
            prompt = rendered.prompt(body["messages"], keeps=keeps)
            rendered.sampled(body["messages"], prompt + ids)
            choice["token_ids"] = ids
            choice["logprobs"] = {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}
        usage = {"prompt_tokens": 10 * len(body["messages"]), "completion_tokens": 7}
        return {"object": "chat.completion", "choices": [choice], "prompt_token_ids": prompt, "usage": usage}

    return answer


ARGUMENTS = st.one_of(
    WORDS.map(lambda text: json.dumps({"command": text})),
    st.sampled_from(['{"command": ', "[]", "", '{"command":   "spaced"}']),
)
CALLED = st.tuples(st.sampled_from(["bash", "bash", "think", "finish", ""]), ARGUMENTS)
IN_TEXT = st.sampled_from([
    "", '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>', "<think>hm</think>Yes.",
    '<tool_call>{"name": "bash", "arg</tool_call>',
])  # fmt: skip


@settings(FEW, max_examples=25)
@given(data=st.data())
def test_in_chat_mode_a_killed_rollout_ends_as_one_that_was_not(
    data: st.DataObject, stub: Stub, model_loop: ModelLoop, cancel: Signal
) -> None:
    endpoint = Endpoint(url=stub.url, model="m", kind="chat", policy_version=3, gives_ids=True)
    limit = data.draw(st.sampled_from([None, 60]), label="context")

    def opened(question: str) -> Conversation:
        request = ConversationRequest(
            job_id="job-1", messages=[{"role": "user", "content": question}], model_loop=model_loop, cancel=cancel,
            sampling=SamplingParams(seed=7), deadline=lambda: 30.0, tools=(BASH,), max_context_tokens=limit,
        )  # fmt: skip
        return open_conversation(endpoint, request, mode="chat")

    questions = data.draw(st.lists(WORDS, min_size=1, max_size=2), label="questions")
    rendered = Rendered()
    replies = [
        said(
            rendered,
            number,
            keeps=data.draw(st.sampled_from([True, True, False])),
            ids=data.draw(st.none() | st.lists(st.integers(0, 50), min_size=1, max_size=4)),
            content=data.draw(WORDS) + data.draw(IN_TEXT),
            calls=data.draw(st.lists(CALLED, max_size=2)),
            reasoning=data.draw(st.none() | WORDS),
        )
        for number in range(MAX_TURNS * len(questions))
    ]
    compare(stub, Bench(opened, cancel, questions), Oracle(stub, replies), data)
