"""The agent: a model that acts through tools until it is done.

    sample a reply -> log it -> call the tools it asks for, and log what each came to -> again

It ends when a tool ends it (`finish`), when a reply asks for no tool (`stop`; also when the reply was cut by its
length, which the turn's own finish reason tells), after `max_turns`, or when the context is full
(`context_overflow`). Cancel, time-outs and faults are raised; what was done until then has been logged.

A run outlives the process that runs it: given what another process logged of it, it goes on from there. No reply that
was logged is sampled again, and no call that may have been begun is made again. So a reply is logged before its tools
are called; only where all of them touch nothing and take no time is it logged with what they came to, in one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prorl_celery.errors import ContextOverflow
from prorl_celery.jobs.models import FinishReason
from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.llm.calls.base import ToolCall
from prorl_celery.llm.conversation import Conversation
from prorl_celery.llm.reply import Reply, parts_of
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

    def at_once(self, name: str, arguments: dict[str, Any]) -> bool: ...
    def call(self, name: str, arguments: dict[str, Any], *, mark: str = "") -> ToolOutcome: ...
    def recover(self, name: str, arguments: dict[str, Any], *, mark: str) -> ToolOutcome: ...


class Log(Protocol):
    """Where a run is written down as it goes. Turns are counted from the run's first, 0."""

    @property
    def run(self) -> int:
        """Which run of the job's agent this is."""
        ...

    def turn(self, turn: Turn) -> None: ...
    def observation(self, seen: Observation) -> None: ...


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How a rollout ended. `answer` is the finish tool's, else the model's last text; `turns` were recorded."""

    finish_reason: FinishReason
    answer: str | None
    turns: int


def outcome_of(logged: Sequence[Turn]) -> AgentOutcome | None:
    """How a run of these turns ended; None when it has not, as far as is logged."""
    outcome = logged[-1].outcome if logged else None
    return None if outcome is None else AgentOutcome(outcome["finish_reason"], outcome["answer"], len(logged))


def run_agent(
    conversation: Conversation,
    toolbox: Tools,
    *,
    max_turns: int,
    log: Log,
    cancel: CancelSignal,
    logged: Sequence[Turn] = (),
) -> AgentOutcome:
    """Run the agent to its end. `logged` is what another process logged of this run, without an outcome.

    Raises: `ContextOverflow` when not even the first prompt fits, `BackendError`, `SandboxError`, `ToolError`, what
    `log` raises, and what `cancel` raises.
    """
    run = _Run(conversation, toolbox, max_turns, log, cancel)
    outcome = run.take_up(logged) if logged else None
    for index in range(len(logged), max_turns):
        if outcome is not None:
            break
        outcome = run.turn(index)
    return outcome or AgentOutcome("max_turns", run.answer, max_turns)


class _Run:
    """One run of the agent."""

    def __init__(
        self, conversation: Conversation, toolbox: Tools, max_turns: int, log: Log, cancel: CancelSignal
    ) -> None:
        self._conversation = conversation
        self._toolbox = toolbox
        self._max_turns = max_turns
        self._log = log
        self._cancel = cancel
        self.answer: str | None = None
        """The model's last words, which are the answer unless a tool gives another."""
        self._calls_made = 0
        self._total_s = 0.0

    def take_up(self, logged: Sequence[Turn]) -> AgentOutcome | None:
        """Stand behind these turns, and make what calls the last one lacks; how the run ended, if it did."""
        reply = self._conversation.resume(logged)
        for turn in logged:
            self.answer = parts_of(turn)[0][-1]["content"] or self.answer
        self._calls_made, self._total_s = len(parts_of(logged[-1])[1]), logged[-1].total_s
        if reply is None:
            return None
        return self._act(reply, len(logged) - 1, time.monotonic() - self._total_s, doubtful=self._calls_made)

    def turn(self, index: int) -> AgentOutcome | None:
        """Sample a reply and do what it asks for; how the run ended, if it did."""
        self._cancel.raise_if_set()
        started = time.monotonic()
        try:
            reply = self._conversation.sample()
        except ContextOverflow:
            if index == 0:
                raise
            return self._overflowed(index)
        self.answer = reply.text or self.answer
        if all(call.arguments is None or self._toolbox.at_once(call.name, call.arguments) for call in reply.calls):
            return self._act_at_once(reply, index, started)
        self._log.turn(reply.to_turn(index, total_s=time.monotonic() - started, closed=False))
        return self._act(reply, index, started)

    def _act_at_once(self, reply: Reply, index: int, started: float) -> AgentOutcome | None:
        """Make calls that take no time, if any, and log the turn with what they came to."""
        begun = time.monotonic()
        observed: list[dict[str, Any]] = []
        last: ToolOutcome | None = None
        try:
            for call in reply.calls:
                last = self._outcome_of(call, "")
                observed += self._conversation.observe([(call, last.content)])
                if last.ends:
                    break
        except BaseException:
            self._log.turn(reply.to_turn(index, total_s=time.monotonic() - started, closed=False))
            raise
        now = time.monotonic()
        outcome = self._ended(last, index)
        self._calls_made, self._total_s = len(observed), now - started
        self._log.turn(
            reply.to_turn(index, observed, tool_s=now - begun, total_s=self._total_s, outcome=_logged(outcome))
        )
        return outcome

    def _act(self, reply: Reply, index: int, started: float, *, doubtful: int | None = None) -> AgentOutcome | None:
        """Make the calls of a reply that is logged, and log what each came to. The call of number `doubtful` may have
        been begun by another process, and those before it have ended.
        """
        for number, call in enumerate(reply.calls[doubtful or 0 :], doubtful or 0):
            self._cancel.raise_if_set()
            begun = time.monotonic()
            came = self._outcome_of(call, f"{self._log.run}.{index}.{number}", begun_before=number == doubtful)
            now = time.monotonic()
            closes = came.ends or number + 1 == len(reply.calls)
            outcome = self._ended(came, index) if closes else None
            self._calls_made, self._total_s = number + 1, now - started
            self._log.observation(
                Observation(
                    index=index,
                    call=number,
                    messages=self._conversation.observe([(call, came.content)]),
                    tool_s=now - begun,
                    total_s=self._total_s,
                    closes=closes,
                    outcome=_logged(outcome),
                )
            )
            if closes:
                return outcome
        return None

    def _outcome_of(self, call: ToolCall, mark: str, *, begun_before: bool = False) -> ToolOutcome:
        if call.arguments is None:
            return _Unread(call.error or "The tool call could not be read.")
        if begun_before:
            return self._toolbox.recover(call.name, call.arguments, mark=mark)
        return self._toolbox.call(call.name, call.arguments, mark=mark)

    def _ended(self, last: ToolOutcome | None, index: int) -> AgentOutcome | None:
        """How the run ended with a turn whose last call came to this; None when it goes on."""
        if last is None:
            return AgentOutcome("stop", self.answer, index + 1)
        if last.ends:
            return AgentOutcome("finish", self.answer if last.answer is None else last.answer, index + 1)
        return AgentOutcome("max_turns", self.answer, index + 1) if index + 1 == self._max_turns else None

    def _overflowed(self, index: int) -> AgentOutcome:
        """The turn before was the last, which could not be known when it was logged."""
        outcome = AgentOutcome("context_overflow", self.answer, index)
        self._log.observation(
            Observation(
                index=index - 1,
                call=self._calls_made,
                total_s=self._total_s,
                closes=True,
                outcome=_logged(outcome),
            )
        )
        return outcome


@dataclass(frozen=True, slots=True)
class _Unread:
    """What a call that could not be read comes to."""

    content: str
    ends: bool = False
    answer: str | None = None


def _logged(outcome: AgentOutcome | None) -> dict[str, Any] | None:
    return None if outcome is None else {"finish_reason": outcome.finish_reason, "answer": outcome.answer}
