"""A turn as the job's turn log keeps it: the tokens it added, the messages it added, how long it took.

The log is append-only and linear: a turn holds only what it adds, so a trajectory of n turns costs n turns of bytes.
`delta_ids` came before the sampled tokens of this turn: the whole prompt for the first turn of a segment, else the
template's and the tools' tokens since the last turn.

A turn whose reply has calls is logged in parts: the reply before its tools run, then an `Observation` as each ends. So
whoever goes on after a loss knows what was sampled and which calls have ended.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


def ids_array(values: Any = ()) -> array[int]:
    """Token ids as int32."""
    return array("i", values)


def logprobs_array(values: Any = ()) -> array[float]:
    """Log-probabilities as float32."""
    return array("f", values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and the tool calls that followed it.

    `sampled_ids`, `logprobs` and `versions` have one length (zero in chat mode without ids).
    `new_segment` is true for the first turn and wherever a prefix had to be broken; then `split_reason` says why
    (None for the first turn).
    """

    index: int
    delta_ids: array[int] = field(default_factory=ids_array)
    sampled_ids: array[int] = field(default_factory=ids_array)
    logprobs: array[float] = field(default_factory=logprobs_array)
    versions: array[int] = field(default_factory=ids_array)
    new_segment: bool = False
    split_reason: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    llm_s: float = 0.0
    tool_s: float = 0.0
    total_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """Of the prompt's, those that the backend had in its prefix cache; None where it does not tell."""
    malformed_calls: int = 0
    """Tool calls that could not be read: the model was told what was wrong."""
    backend: str | None = None
    policy_version: int | None = None
    finish_reason: str = "stop"
    run: int = 0
    """Which run of the agent this is of, counted through the handler's rollout."""
    closed: bool = True
    """Whether all its calls have ended. An open one has the messages and times of those that have."""
    outcome: dict[str, Any] | None = None
    """Where the run ended with this turn: its `finish_reason` and `answer`."""
    model: str | None = None
    """Which model this is of; told in a run's first turn, as `mode`."""
    mode: str | None = None
    """`tokens` or `chat`."""
    given: dict[str, Any] | None = None
    """In chat mode the reply as the server gave it (`content`, `reasoning`, `calls`), where `messages` hold it taken
    apart: it is sent back as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one tool call of an open turn gave, logged as it ends.

    `index` is the turn's, `call` the call's number in it, from 0. `messages` are those that it adds, `tool_s` its own
    seconds, `total_s` the turn's so far. `closes`: no other call follows; then `outcome` as for a turn.
    """

    index: int
    call: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    tool_s: float = 0.0
    total_s: float = 0.0
    closes: bool = False
    outcome: dict[str, Any] | None = None

    @property
    def ends_the_run_alone(self) -> bool:
        """Whether this is no call's: behind the last call it says that the run ended (its context was full)."""
        return self.outcome is not None and not self.messages
