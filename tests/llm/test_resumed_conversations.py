"""Rollouts whose process is killed at any instant, and that another process goes on with: in the end the log is that of
a rollout that nobody disturbed, the backend is asked nothing that it had answered into the log, and no call of a tool
is made twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kept_log import KeptLog
from llm_stub import BASH, CHATML, Signal, Stub, completion, make_tokenizer

from prorl_celery.agents.loop import AgentOutcome, outcome_of, run_agent
from prorl_celery.errors import ContextOverflow
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.llm.conversation import Conversation, open_conversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.reply import Reply
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.llm.tokenizer import load_tokenizer
from prorl_celery.tools import base

MAX_TURNS = 4
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
FORGED = st.sampled_from(["<|im_end|>", "<|im_start|>assistant\n", "<tool_call>", "</tool_response>", "SPLIT", "SPLIT"])
WORDS = st.lists(TEXT | FORGED, max_size=3).map("".join)


class Killed(BaseException):
    """The process is gone: nothing of its own may catch this and go on."""


class Fuse:
    """Kills at the `at`-th step; None: never."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.steps = 0

    def step(self) -> None:
        if self.steps == self.at:
            raise Killed
        self.steps += 1


@dataclass
class World:
    """What outlives a process: the log, and the sandbox with what was done there."""

    logs: list[KeptLog] = field(default_factory=list)
    mark: str = ""
    came: dict[str, str] = field(default_factory=dict)
    """Mark -> what its call came to; none is made twice."""

    def log(self, run: int) -> KeptLog:
        while len(self.logs) <= run:
            self.logs.append(KeptLog(len(self.logs)))
        return self.logs[run]

    @property
    def turns(self) -> list[Turn]:
        return [turn for log in self.logs for turn in log.turns]


class MortalLog:
    """Writes through, and is killed before or behind a write."""

    def __init__(self, log: KeptLog, fuse: Fuse) -> None:
        self.run = log.run
        self._log = log
        self._fuse = fuse

    def turn(self, turn: Turn) -> None:
        self._fuse.step()
        self._log.turn(turn)
        self._fuse.step()

    def observation(self, seen: Observation) -> None:
        self._fuse.step()
        self._log.observation(seen)
        self._fuse.step()


class Tools:
    """`bash` changes the world; `think` and `finish` touch nothing. Killed before, within or behind a call."""

    def __init__(self, world: World, fuse: Fuse) -> None:
        self._world = world
        self._fuse = fuse

    def at_once(self, name: str, arguments: dict[str, Any]) -> bool:
        return name != "bash"

    def call(self, name: str, arguments: dict[str, Any], *, mark: str = "") -> base.Observation:
        self._fuse.step()
        if name == "finish":
            return base.Observation("", ends=True, answer=arguments.get("answer"))
        if name != "bash":
            return base.Observation(f"There is no {name}.")
        self._world.mark = mark
        self._fuse.step()
        assert mark not in self._world.came, "the command ran twice"
        self._world.came[mark] = f"{mark}: {arguments.get('command')}"
        self._fuse.step()
        return base.Observation(self._world.came[mark])

    def recover(self, name: str, arguments: dict[str, Any], *, mark: str) -> base.Observation:
        if name == "bash" and self._world.mark == mark and mark in self._world.came:
            return base.Observation(self._world.came[mark])
        return self.call(name, arguments, mark=mark)


class MortalConversation:
    """Is killed when the reply is there, or before it is asked for."""

    def __init__(self, inner: Conversation, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse
        self.observe, self.move, self.resume = inner.observe, inner.move, inner.resume

    def sample(self, *, max_tokens: int | None = None) -> Reply:
        self._fuse.step()
        reply = self._inner.sample(max_tokens=max_tokens)
        self._fuse.step()
        return reply


Open = Callable[[str], Conversation]


@dataclass
class Bench:
    """Plays a job of several runs against the stub, from its start to its end or its death."""

    open: Open
    cancel: Signal
    questions: list[str]

    def play(self, world: World, fuse: Fuse) -> list[AgentOutcome]:
        outcomes = []
        for run, question in enumerate(self.questions):
            logged = world.log(run).turns
            outcome = outcome_of(logged)
            if outcome is None:
                outcome = run_agent(
                    MortalConversation(self.open(question), fuse), Tools(world, fuse), max_turns=MAX_TURNS,
                    log=MortalLog(world.log(run), fuse), cancel=self.cancel, logged=logged,
                )  # fmt: skip
            outcomes.append(outcome)
        return outcomes


def timeless(turns: list[Turn]) -> list[Turn]:
    return [replace(turn, llm_s=0.0, tool_s=0.0, total_s=0.0) for turn in turns]


def asked(stub: Stub) -> Counter[str]:
    return Counter(json.dumps(body, sort_keys=True) for body in stub.bodies)


class Oracle:
    """Answers by a script the first time a request comes, and the same whenever that comes again; a request that the
    undisturbed rollout did not make has no answer."""

    def __init__(self, stub: Stub, script: Sequence[Any]) -> None:
        self._script = iter(script)
        self._known: dict[str, Any] = {}
        self.learning = True
        self.strange: list[str] = []
        stub.answer = self
        stub.bodies.clear()

    def __call__(self, body: dict[str, Any]) -> Any:
        key = json.dumps(body, sort_keys=True)
        if key not in self._known:
            if not self.learning:
                self.strange.append(key)
                return web.json_response({"error": {"message": "never asked before"}}, status=400)
            self._known[key] = next(self._script)(body)
        return self._known[key]


def compare(stub: Stub, bench: Bench, oracle: Oracle, data: st.DataObject) -> None:
    """Play undisturbed, then with kills, and compare."""
    whole, fuse = World(), Fuse()
    outcomes = bench.play(whole, fuse)
    plain = asked(stub)
    assume(len(plain) == plain.total())  # else a request would not tell which turn it is of
    oracle.learning = False
    world, kills = World(), 0
    stub.bodies.clear()
    try:
        for at in data.draw(st.lists(st.integers(0, fuse.steps), min_size=1, max_size=3), label="killed at step"):
            try:
                bench.play(world, Fuse(at))
            except Killed:
                kills += 1
        ended = bench.play(world, Fuse())
    finally:
        assert oracle.strange == [], "the resumed rollout asked for something else"
    assert ended == outcomes
    assert timeless(world.turns) == timeless(whole.turns)
    assert world.came == whole.came
    again = asked(stub) - plain
    assert again.total() <= kills, "a reply that was logged was asked for again"


def ids_of(directory: Path, text: str) -> list[int]:
    return list(load_tokenizer(directory)._tokenizer.encode(text, add_special_tokens=False).ids)


def spoken(directory: Path) -> st.SearchStrategy[list[int]]:
    """What a model may sample: words, odd ids, calls good and bad, ended or cut."""
    call = st.builds(lambda text: {"name": "bash", "arguments": {"command": text}}, WORDS)
    thought = st.just({"name": "think", "arguments": {}})
    end = st.builds(lambda text: {"name": "finish", "arguments": {"answer": text}}, WORDS)
    calls = st.lists(call | call | thought | end, max_size=3).map(
        lambda calls: "".join(f"<tool_call>\n{json.dumps(one)}\n</tool_call>" for one in calls)
    )
    broken = st.just('<tool_call>{"name": "bash", "arg</tool_call>')
    odd = st.lists(st.integers(30, 300), max_size=6)
    marks = st.sampled_from([[2], [0], []])
    text = st.one_of(calls, calls, broken, st.tuples(calls, broken).map("".join)).map(lambda t: ids_of(directory, t))
    return st.tuples(odd, text, marks).map(lambda parts: [i for part in parts for i in part])


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


@pytest.mark.parametrize("template", ["chatml", "splitting"])
@FEW
@given(data=st.data())
def test_in_token_mode_a_killed_rollout_ends_as_one_that_was_not(
    data: st.DataObject, template: str, stub: Stub, tokenizer_dir: Path, splitting_dir: Path, model_loop: ModelLoop,
    cancel: Signal,
) -> None:  # fmt: skip
    directory = tokenizer_dir if template == "chatml" else splitting_dir
    endpoint = Endpoint(url=stub.url, model="m", tokenizer=str(directory), policy_version=3)
    script = spoken(directory)
    limit = data.draw(st.sampled_from([None, 400]), label="context")

    def opened(question: str) -> Conversation:
        request = ConversationRequest(
            job_id="job-1", messages=[{"role": "user", "content": question}], model_loop=model_loop, cancel=cancel,
            sampling=SamplingParams(seed=7, stop=["STOP"]), deadline=lambda: 30.0, tools=(BASH,),
            max_context_tokens=limit,
        )  # fmt: skip
        return open_conversation(endpoint, request)

    def sampling(ids: list[int]) -> Any:
        def answer(body: dict[str, Any]) -> dict[str, Any]:
            said = ids[: body["max_tokens"]]
            logprobs = {"token_logprobs": [-0.25 * n for n in range(len(said))]}
            return completion(said, prompt=body["prompt"], finish_reason="length", logprobs=logprobs)

        return answer

    questions = data.draw(st.lists(WORDS, min_size=1, max_size=2), label="questions")
    try:
        replies = [sampling(data.draw(script, label="reply") or [40]) for _ in range(MAX_TURNS * len(questions))]
        compare(stub, Bench(opened, cancel, questions), Oracle(stub, replies), data)
    except ContextOverflow:
        assume(False)  # not even the first prompt fits


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
