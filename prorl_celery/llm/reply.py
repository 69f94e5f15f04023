"""What a conversation gives for one model call, how it becomes a `Turn`, and how it is read from one again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prorl_celery.jobs.turns import Turn, ids_array, logprobs_array
from prorl_celery.llm.calls.base import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One assistant turn as sampled. Fields of the same name mean what they mean in `Turn`.

    `messages` are those since the last reply that no turn holds yet (the first time: the whole prompt), the
    assistant's last. `text` is the assistant's content without reasoning and calls.
    """

    messages: list[dict[str, Any]]
    text: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
    delta_ids: array[int] = field(default_factory=ids_array)
    sampled_ids: array[int] = field(default_factory=ids_array)
    logprobs: array[float] = field(default_factory=logprobs_array)
    versions: array[int] = field(default_factory=ids_array)
    new_segment: bool = False
    split_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    backend: str | None = None
    policy_version: int | None = None
    llm_s: float = 0.0
    model: str | None = None
    mode: str | None = None
    given: dict[str, Any] | None = None

    def to_turn(
        self,
        index: int,
        observed: Sequence[dict[str, Any]] = (),
        *,
        tool_s: float = 0.0,
        total_s: float = 0.0,
        closed: bool = True,
        outcome: dict[str, Any] | None = None,
    ) -> Turn:
        """This reply and what followed it, as the turn log keeps it; not `closed`: more follows it."""
        return Turn(
            index=index,
            delta_ids=self.delta_ids,
            sampled_ids=self.sampled_ids,
            logprobs=self.logprobs,
            versions=self.versions,
            new_segment=self.new_segment,
            split_reason=self.split_reason,
            messages=[*self.messages, *observed],
            llm_s=self.llm_s,
            tool_s=tool_s,
            total_s=total_s,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            malformed_calls=sum(call.arguments is None for call in self.calls),
            backend=self.backend,
            policy_version=self.policy_version,
            finish_reason=self.finish_reason,
            closed=closed,
            outcome=outcome,
            model=self.model,
            mode=self.mode,
            given=self.given,
        )


def assistant_message(content: str | None, reasoning: str | None, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """An assistant message in OpenAI's form, reasoning apart."""
    message: dict[str, Any] = {"role": "assistant", "content": content or ""}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [call.to_message() for call in calls]
    return message


def tool_message(call: ToolCall, content: str) -> dict[str, Any]:
    """What a call came to, as the model reads it."""
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def parts_of(turn: Turn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A logged turn's messages: those of its reply, the assistant's last, and those that its calls added."""
    at = max(n for n, message in enumerate(turn.messages, 1) if message["role"] == "assistant")
    return turn.messages[:at], turn.messages[at:]


def reply_of(turn: Turn, text: str, calls: tuple[ToolCall, ...]) -> Reply:
    """The reply that a logged turn began with."""
    return Reply(
        messages=parts_of(turn)[0],
        text=text,
        calls=calls,
        finish_reason=turn.finish_reason,
        delta_ids=turn.delta_ids,
        sampled_ids=turn.sampled_ids,
        logprobs=turn.logprobs,
        versions=turn.versions,
        new_segment=turn.new_segment,
        split_reason=turn.split_reason,
        prompt_tokens=turn.prompt_tokens,
        completion_tokens=turn.completion_tokens,
        cached_tokens=turn.cached_tokens,
        backend=turn.backend,
        policy_version=turn.policy_version,
        llm_s=turn.llm_s,
        model=turn.model,
        mode=turn.mode,
        given=turn.given,
    )
