"""A chat server's reply as the server gave it: how it is read, how it is sent back, how it outlives this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from prorl_celery.jobs.turns import Turn
from prorl_celery.llm.calls.base import Parser, ToolCall, checked_call
from prorl_celery.llm.reply import assistant_message, parts_of

CALL_FORM = "Call a tool by its name, with a JSON object of arguments."


@dataclass(frozen=True, slots=True)
class Given:
    """What the server said. `calls` are those that it took out of the text itself: id, name, arguments as text."""

    content: str
    reasoning: str | None
    calls: tuple[tuple[str, str, str], ...]

    @classmethod
    def of_turn(cls, turn: Turn) -> Self:
        """What it had said in a logged turn."""
        if turn.given is not None:
            return cls(turn.given["content"], turn.given["reasoning"], tuple(map(tuple, turn.given["calls"])))
        message = parts_of(turn)[0][-1]
        named = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
        calls = tuple((call_id, function["name"], function["arguments"]) for call_id, function in named)
        return cls(message["content"], message.get("reasoning_content"), calls)

    def understood(
        self, parse: Parser, turn: int, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, str | None, tuple[ToolCall, ...]]:
        """Text, reasoning and calls: the server's own parsing where it parsed, else ours."""
        parsed = parse(self.content, lambda n: f"c{turn:05d}{n:03d}", tools)
        reasoning = parsed.reasoning if self.reasoning is None else self.reasoning
        if not self.calls:
            return parsed.content, reasoning, parsed.calls
        calls = tuple(
            checked_call(
                call_id or f"c{turn:05d}{n:03d}",
                {"name": name, "arguments": arguments},
                arguments,
                form=CALL_FORM,
            )
            for n, (call_id, name, arguments) in enumerate(self.calls)
        )
        return parsed.content, reasoning, calls

    def message(self, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """The assistant message to send back. A call that cannot be read goes back as an object that holds its text:
        servers parse the arguments before they render them, and refuse the whole conversation otherwise.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                call.to_message()
                if call.arguments is not None
                else ToolCall(id=call.id, name=call.name, arguments={"unreadable": call.raw}).to_message()
                for call in calls
            ]
        return message

    def to_log(self, content: str, reasoning: str | None, calls: Sequence[ToolCall]) -> dict[str, Any] | None:
        """What the turn log must hold for `of_turn`; None where the message that it holds anyhow will do."""
        if self.message(calls) == assistant_message(content, reasoning, calls):
            return None
        return {"content": self.content, "reasoning": self.reasoning, "calls": [list(call) for call in self.calls]}
