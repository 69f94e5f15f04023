"""A turn as the job's turn log keeps it: the tokens it added, the messages it added, how long it took.

The log is append-only and linear: a turn holds only what it adds, so a trajectory of n turns costs n turns of bytes.
`delta_ids` came before the sampled tokens of this turn: the whole prompt for the first turn of a segment, else the
template's and the tools' tokens since the last turn.
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
