"""The agent loop, with a model and tools that are scripts: no tokens and no sandbox are needed to see how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from kept_log import KeptLog

from prorl_celery.agents.loop import AgentOutcome, run_agent
from prorl_celery.errors import Cancelled, ContextOverflow, SandboxError
from prorl_celery.jobs.turns import Turn, ids_array, logprobs_array
from prorl_celery.llm.calls.base import ToolCall
from prorl_celery.llm.calls.hermes import parse_hermes
from prorl_celery.llm.reply import Reply, assistant_message, tool_message


class Never:
    """A cancel signal that is set after so many looks."""

    def __init__(self, after: int = 1_000_000) -> None:
        self.left = after

    def fileno(self) -> int:
        raise AssertionError("not waited for")

    @property
    def is_set(self) -> bool:
        return self.left <= 0

    def raise_if_set(self) -> None:
        self.left -= 1
        if self.is_set:
            raise Cancelled("stop")


class Script:
    """A conversation that says what it is told; an exception in the list is raised."""

    def __init__(self, *says: str | Exception) -> None:
        self.says = list(says)
        self.observed: list[list[tuple[ToolCall, str]]] = []
        self.turn = 0

    def sample(self, *, max_tokens: int | None = None) -> Reply:
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        parsed = parse_hermes(said, lambda n: f"c{self.turn}-{n}")
        self.turn += 1
        return Reply(
            messages=[assistant_message(parsed.content, parsed.reasoning, parsed.calls)],
            text=parsed.content, calls=parsed.calls, finish_reason="stop", sampled_ids=ids_array([self.turn]),
            logprobs=logprobs_array([-0.5]), versions=ids_array([3]), llm_s=1.5,
        )  # fmt: skip

    def observe(self, observations: Sequence[tuple[ToolCall, str]]) -> list[dict[str, Any]]:
        self.observed.append(list(observations))
        return [tool_message(call, content) for call, content in observations]

    def move(self, endpoint: object) -> None:
        raise AssertionError

    def resume(self, turns: Sequence[Turn]) -> Reply | None:
        raise AssertionError


@dataclass
class Outcome:
    content: str
    ends: bool = False
    answer: str | None = None


class Toolbox:
    """`echo` repeats, `finish` ends, `break` breaks; `finish` and `think` touch nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.marks: list[str] = []

    def at_once(self, name: str, arguments: dict[str, Any]) -> bool:
        return name in {"finish", "think"}

    def recover(self, name: str, arguments: dict[str, Any], *, mark: str) -> Outcome:
        raise AssertionError("nothing was taken over")

    def call(self, name: str, arguments: dict[str, Any], *, mark: str = "") -> Outcome:
        self.marks.append(mark)
        self.calls.append(name)
        if name == "break":
            raise SandboxError("gone")
        if name == "finish":
            return Outcome("Done.", ends=True, answer=arguments.get("answer"))
        return Outcome(str(arguments.get("text")))


def call(name: str, **arguments: Any) -> str:
    import json

    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def run(script: Script, toolbox: Toolbox, **options: Any) -> tuple[AgentOutcome, list[Turn]]:
    log = KeptLog()
    options = {"max_turns": 10, "cancel": Never(), "log": log} | options
    return run_agent(script, toolbox, **options), log.turns


def test_it_acts_observes_and_ends_when_a_tool_ends_it() -> None:
    script = Script(
        "I try." + call("echo", text="a") + call("echo", text="b"), call("finish", answer="42") + call("echo")
    )
    toolbox = Toolbox()
    outcome, turns = run(script, toolbox)
    assert outcome == AgentOutcome("finish", "42", 2)
    assert toolbox.calls == ["echo", "echo", "finish"]
    assert [[content for _, content in one] for one in script.observed] == [["a"], ["b"], ["Done."]]
    assert toolbox.marks == ["0.0.0", "0.0.1", "0.1.0"]
    assert [message["role"] for message in turns[0].messages] == ["assistant", "tool", "tool"]
    assert [message["role"] for message in turns[1].messages] == ["assistant", "tool"]
    assert [turn.index for turn in turns] == [0, 1]
    assert turns[0].llm_s == 1.5
    assert list(turns[1].sampled_ids) == [2]


def test_finish_without_an_answer_answers_with_the_last_text() -> None:
    outcome, _ = run(Script("It is 7." + call("echo"), call("finish")), Toolbox())
    assert outcome.answer == "It is 7."


def test_a_reply_without_a_call_stops_it() -> None:
    outcome, turns = run(Script("It is 7."), Toolbox())
    assert outcome == AgentOutcome("stop", "It is 7.", 1)
    assert len(turns) == 1


def test_a_call_that_cannot_be_read_costs_a_turn_and_tells_the_model_why() -> None:
    script = Script('<tool_call>{"name": "echo", "arg</tool_call>', "ok")
    toolbox = Toolbox()
    outcome, turns = run(script, toolbox)
    assert outcome.turns == 2
    assert toolbox.calls == []
    assert "not valid JSON" in turns[0].messages[-1]["content"]


def test_it_ends_after_max_turns_with_the_last_observation_recorded() -> None:
    outcome, turns = run(Script(*[call("echo", text="x")] * 5), Toolbox(), max_turns=3)
    assert outcome == AgentOutcome("max_turns", None, 3)
    assert turns[-1].messages[-1]["content"] == "x"


def test_a_full_context_ends_it_with_what_was_gathered() -> None:
    outcome, turns = run(Script(call("echo"), ContextOverflow("full")), Toolbox())
    assert outcome == AgentOutcome("context_overflow", None, 1)
    assert len(turns) == 1


def test_a_first_prompt_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ContextOverflow):
        run(Script(ContextOverflow("full")), Toolbox())


@pytest.mark.parametrize(
    ("second", "cancel", "error"),
    [(call("break"), Never(), SandboxError), (call("echo", text="b"), Never(after=3), Cancelled)],
)
def test_what_breaks_off_a_turn_is_raised_after_the_part_that_was_done_is_logged(
    second: str, cancel: Never, error: type[Exception]
) -> None:
    log = KeptLog()
    script = Script(call("echo", text="a") + second)
    with pytest.raises(error):
        run(script, Toolbox(), log=log, cancel=cancel)
    (turn,) = log.turns
    assert [message.get("content") for message in turn.messages] == ["", "a"]
    assert len(turn.messages[0]["tool_calls"]) == 2
    assert (turn.closed, turn.outcome) == (False, None)


def test_a_reply_is_logged_before_its_tools_are_called_and_each_call_as_it_ends() -> None:
    log = KeptLog()
    seen: list[tuple[int, bool]] = []

    class Watching(Toolbox):
        def call(self, name: str, arguments: dict[str, Any], *, mark: str = "") -> Outcome:
            seen.append((len(log.turns[-1].messages), log.turns[-1].closed))
            return super().call(name, arguments, mark=mark)

    run(Script(call("echo", text="a") + call("echo", text="b"), "ok"), Watching(), log=log)
    assert seen == [(1, False), (2, False)]
    assert [(len(turn.messages), turn.closed) for turn in log.turns] == [(3, True), (1, True)]


def test_a_turn_costs_one_write_and_one_more_for_each_call_that_may_touch_something() -> None:
    def writes(said: str) -> int:
        log = KeptLog()
        run(Script(said), Toolbox(), log=log, max_turns=1)
        return len(log.blobs)

    assert writes("Done.") == 1
    assert writes(call("finish")) == writes(call("think") + "<tool_call>{</tool_call>") == 1
    assert writes(call("echo")) == 2
    assert writes(call("echo") + call("think") + call("echo")) == 4


def test_how_a_run_ended_is_in_its_last_turn() -> None:
    def logged(*says: str | Exception) -> dict[str, Any] | None:
        _, turns = run(Script(*says), Toolbox(), max_turns=2)
        assert all(turn.outcome is None for turn in turns[:-1])
        assert all(turn.closed for turn in turns)
        return turns[-1].outcome

    assert logged("7") == {"finish_reason": "stop", "answer": "7"}
    assert logged("7" + call("finish")) == {"finish_reason": "finish", "answer": "7"}
    assert logged(call("echo") + call("finish", answer="8")) == {"finish_reason": "finish", "answer": "8"}
    assert logged("7" + call("echo"), call("echo")) == {"finish_reason": "max_turns", "answer": "7"}
    assert logged(call("echo"), ContextOverflow("full")) == {"finish_reason": "context_overflow", "answer": None}
    assert logged(call("think"), ContextOverflow("full")) == {"finish_reason": "context_overflow", "answer": None}


def test_a_cancel_between_calls_that_take_no_time_leaves_the_reply_in_the_log() -> None:
    class Cancelling(Toolbox):
        def call(self, name: str, arguments: dict[str, Any], *, mark: str = "") -> Outcome:
            raise Cancelled("stop")

    log = KeptLog()
    with pytest.raises(Cancelled):
        run(Script(call("think")), Cancelling(), log=log)
    (turn,) = log.turns
    assert (list(turn.sampled_ids), turn.closed, len(turn.messages)) == ([1], False, 1)
