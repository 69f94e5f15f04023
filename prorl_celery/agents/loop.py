"""The agent: a model that acts through tools until it is done.

    sample a reply -> call the tools it asks for -> let it observe what came of them -> record the turn -> again

It ends when a tool ends it (`finish`), when a reply asks for no tool (`stop`; also when the reply was cut by its
length, which the turn's own finish reason tells), after `max_turns`, or when the context is full
(`context_overflow`). Cancel, time-outs and faults are raised, after what was done of the turn has been recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from prorl_celery.errors import ContextOverflow
from prorl_celery.jobs.models import FinishReason
from prorl_celery.jobs.turns import Turn
from prorl_celery.llm.calls.base import ToolCall
from prorl_celery.llm.conversation import Conversation
from prorl_celery.llm.reply import Reply
from prorl_celery.sandbox.base import CancelSignal


class ToolOutcome(Protocol):
    """What a tool call came to (`prorl_celery.tools.base.Observation`)."""

    @property
    def content(self) -> str: ...
    @property
    def ends(self) -> bool: ...
    @property
    def answer(self) -> str | None: ...


class Tools(Protocol):
    """What the agent acts through (`prorl_celery.tools.toolbox.Toolbox`)."""

    def call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome: ...


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How a rollout ended. `answer` is the finish tool's, else the model's last text; `turns` were recorded."""

    finish_reason: FinishReason
    answer: str | None
    turns: int


def run_agent(
    conversation: Conversation,
    toolbox: Tools,
    *,
    max_turns: int,
    record: Callable[[Turn], None],
    cancel: CancelSignal,
) -> AgentOutcome:
    """Run the agent to its end; `record` gets each turn as it completes.

    Raises: `ContextOverflow` when not even the first prompt fits, `BackendError`, `SandboxError`, `ToolError`, what
    `record` raises, and what `cancel` raises.
    """
    answer: str | None = None
    for index in range(max_turns):
        cancel.raise_if_set()
        started = time.monotonic()
        try:
            reply = conversation.sample()
        except ContextOverflow:
            if index == 0:
                raise
            return AgentOutcome("context_overflow", answer, index)
        answer = reply.text or answer
        turn = _ToolTurn(toolbox, cancel)
        try:
            ended = turn.act(reply)
        finally:
            tool_s = time.monotonic() - turn.started
            observed = conversation.observe(turn.observations) if turn.observations else []
            total_s = time.monotonic() - started
            record(reply.to_turn(index, observed, tool_s=tool_s, total_s=total_s))
        if ended is not None:
            return AgentOutcome("finish", answer if ended.answer is None else ended.answer, index + 1)
        if not reply.calls:
            return AgentOutcome("stop", answer, index + 1)
    return AgentOutcome("max_turns", answer, max_turns)


class _ToolTurn:
    """The tool calls of one reply. `observations` holds those that were made, also after one of them raised."""

    def __init__(self, toolbox: Tools, cancel: CancelSignal) -> None:
        self._toolbox = toolbox
        self._cancel = cancel
        self.observations: list[tuple[ToolCall, str]] = []
        self.started = time.monotonic()

    def act(self, reply: Reply) -> ToolOutcome | None:
        """Make the calls in order; the outcome that ends the rollout, behind which no call is made."""
        for call in reply.calls:
            self._cancel.raise_if_set()
            if call.arguments is None:
                self.observations.append((call, call.error or "The tool call could not be read."))
                continue
            outcome = self._toolbox.call(call.name, call.arguments)
            self.observations.append((call, outcome.content))
            if outcome.ends:
                return outcome
        return None
