"""Recitals: what an oracle has the agent say turn by turn, for tasks of any kind.

Given: a row `{"key": text, "prompt": text that stands in the user's first message, "turns": [...], "wrong_turns":
[...]}`, where a turn is `{"text": text, "calls": [{"name": tool, "arguments": {...}}]}` and both of its fields may be
left out, as may `wrong_turns`.
Gives: a `Recital`; `find_recital` finds it by the text of the message, whitespace aside.

A turn without calls ends a rollout, as it does with any model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ROW = frozenset({"key", "prompt", "turns", "wrong_turns"})
"""The fields of a row."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, whatever the agent has been given."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """One turn of the assistant."""

    text: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Recital:
    """What is said for one prompt: `turns` where the sample is to come out right, `wrong_turns` else."""

    key: str
    prompt: str
    turns: tuple[SpokenTurn, ...]
    wrong_turns: tuple[SpokenTurn, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any], number: int) -> Recital:
        """The recital of an oracle's row. Raises `ValueError` that names the row and the field that is wrong."""
        where = f"row {number} of the oracle"
        if unknown := row.keys() - ROW:
            raise ValueError(f"{where}: unknown field {min(unknown)!r}; there are {', '.join(sorted(ROW))}")
        key, prompt = row.get("key"), row.get("prompt")
        if not isinstance(key, str) or not key:
            raise ValueError(f"{where}: key must be text, not {key!r}")
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"{where}: prompt must be text, not {prompt!r}")
        turns = _turns(row.get("turns"), f"{where}: turns")
        if not turns:
            raise ValueError(f"{where}: turns must not be empty")
        return cls(key, squeeze(prompt), turns, _turns(row.get("wrong_turns", []), f"{where}: wrong_turns"))


def find_recital(recitals: Iterable[Recital], text: str) -> Recital | None:
    """The one whose whole prompt stands in `text`, whitespace aside; the longest of several."""
    squeezed = squeeze(text)
    found = (recital for recital in recitals if recital.prompt in squeezed)
    return max(found, key=lambda recital: (len(recital.prompt), recital.key), default=None)


def check_prompts(recitals: Iterable[Recital]) -> None:
    """Raises `ValueError` where two have one prompt and say different things: either might be found."""
    seen: dict[str, Recital] = {}
    for recital in recitals:
        first = seen.setdefault(recital.prompt, recital)
        if (first.turns, first.wrong_turns) != (recital.turns, recital.wrong_turns):
            raise ValueError(f"the oracle's rows {first.key!r} and {recital.key!r} have the same prompt")


def squeeze(text: str) -> str:
    """`text` with each run of whitespace as one space."""
    return " ".join(text.split())


def _turns(value: Any, where: str) -> tuple[SpokenTurn, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, not {value!r}")
    return tuple(_turn(turn, f"{where}[{at}]") for at, turn in enumerate(value))


def _turn(value: Any, where: str) -> SpokenTurn:
    if not isinstance(value, dict) or not value.keys() <= {"text", "calls"}:
        raise ValueError(f'{where} must be {{"text": ..., "calls": [...]}}, not {value!r}')
    text, calls = value.get("text", ""), value.get("calls", [])
    if not isinstance(text, str):
        raise ValueError(f"{where}.text must be text, not {text!r}")
    if not isinstance(calls, list):
        raise ValueError(f"{where}.calls must be a list, not {calls!r}")
    return SpokenTurn(text, tuple(_call(call, f"{where}.calls[{at}]") for at, call in enumerate(calls)))


def _call(value: Any, where: str) -> ToolCall:
    match value:
        case {"name": str(name), "arguments": dict(arguments), **more} if not more:
            return ToolCall(name, arguments)
    raise ValueError(f'{where} must be {{"name": tool, "arguments": {{...}}}}, not {value!r}')
