"""What all forms of tool calls share: a call, a reply taken apart, reasoning, strict JSON. Pure functions over text.

A call that cannot be read is not dropped: it becomes a `ToolCall` with `error`, a sentence for the model, which the
agent loop gives back as the observation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

THINK, UNTHINK = "<think>", "</think>"
UNREADABLE = "unreadable_call"
"""The name recorded for a call whose own name could not be read."""

MakeId = Callable[[int], str]
"""Names the n-th call of a reply."""
Schemas = Sequence[Mapping[str, Any]]
"""The tools' OpenAI function schemas: a form that writes all values as text is read by the types in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call. `arguments` is None exactly when `error` says what was wrong; `raw` is what the model wrote."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    error: str | None = None
    raw: str = ""

    def to_message(self) -> dict[str, Any]:
        """The call as an OpenAI assistant message holds it; a malformed one with the model's own text."""
        text = self.raw if self.arguments is None else json.dumps(self.arguments, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": text}}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A reply taken apart. `reasoning` is None when the model did not think aloud."""

    content: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]


class Parser(Protocol):
    """Takes a reply apart. Never raises; about linear in the text."""

    def __call__(self, text: str, make_id: MakeId, tools: Schemas = ()) -> Parsed: ...


def split_reasoning(text: str, opening: str, marks: tuple[str, str] = (THINK, UNTHINK)) -> tuple[str | None, str]:
    """The reasoning block and what follows it. Calls inside the block are thoughts, not calls; `opening` is how a call
    begins, `marks` stand around the block.

    A block without its opening tag is one that the template opened in the generation prompt; a block that is never
    closed was cut short, and all of it is reasoning.
    """
    think, unthink = marks
    opened = text.lstrip().startswith(think)
    end = text.find(unthink)
    if end < 0:
        return (text.lstrip()[len(think) :].strip(), "") if opened else (None, text)
    if not opened and 0 <= text.find(opening) < end:
        return None, text
    head = text[:end].lstrip()
    return head.removeprefix(think).strip(), text[end + len(unthink) :].lstrip("\n")


def checked_call(call_id: str, value: Any, raw: str, *, form: str, key: str = "arguments") -> ToolCall:
    """A `ToolCall` from a decoded JSON value, with `error` where it is not a call. `form` tells the model how to write
    one; `key` is what the arguments are called.
    """
    if not isinstance(value, dict):
        return malformed(call_id, raw, f"The tool call must be a JSON object, not {_kind(value)}. {form}")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return malformed(call_id, raw, f'The tool call has no "name" that is a string. {form}')
    name = name.strip()
    arguments = value.get(key, {})
    if isinstance(arguments, str):
        try:
            arguments = decode(arguments)
        except ValueError as error:
            return malformed(call_id, raw, f'The "{key}" of {name!r} are text that is not JSON: {error}.', name)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return malformed(call_id, raw, f'The "{key}" of {name!r} must be a JSON object, not {_kind(arguments)}.', name)
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw)


def decode(text: str) -> Any:
    """Strict JSON (no NaN, no Infinity, nothing that becomes one); `ValueError` whatever is wrong with it, absurd
    nesting included.
    """
    value, end = decode_at(text, 0)
    if text[end:].strip():
        raise ValueError(f"there is text after the JSON at character {end}")
    return value


def malformed(call_id: str, raw: str, error: str, name: str = UNREADABLE) -> ToolCall:
    """A call that could not be read; `error` tells the model why."""
    return ToolCall(id=call_id, name=name, arguments=None, error=error, raw=raw)


def decode_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and where it ends. `ValueError` as `decode`."""
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, end = _decoded(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(text, start, end) and not _is_text(value):
        raise ValueError("it holds half of a surrogate pair, which is no character")
    return value, end


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """What begins at `start`, and where it ends. Raises as the decoder, with positions counted from `start`.

    The decoder counts the lines before an error from the text's beginning, so that it is shown a part first: a long
    text of many broken calls would take minutes.
    """
    part = text[start : start + _PART_CHARS]
    whole = start + len(part) == len(text)
    try:
        value, end = _DECODER.raw_decode(part)
        if whole or end < len(part):
            return value, start + end
    except json.JSONDecodeError as error:
        if whole or not (error.msg.startswith("Unterminated") or error.pos > len(part) - _LONGEST_WORD):
            raise
    value, end = _DECODER.raw_decode(text[start:])
    return value, start + end


def skip_space(text: str, at: int) -> int:
    """Where the text goes on behind the white space at `at`, without a copy of the rest."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _is_text(value: Any) -> bool:
    """Whether all strings in a value can be written down: no file, terminal or tokenizer takes half a pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    """A number that JSON allows may be more than a float holds, and an infinity cannot be written as JSON again."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:40]} is too large a number")
    return value


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    return names.get(type(value), "null")


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""A character written as (half of) a pair of escapes."""

_PART_CHARS = 1 << 14
_LONGEST_WORD = 16
"""More than the longest thing that can be cut in the middle without being told as unterminated: `false`, `\\ud83d`."""

_SPACE = re.compile(r"\s*")

_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
