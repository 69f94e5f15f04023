"""What a model wrote, taken apart: reasoning, text, tool calls. Pure functions over text.

The form read is Hermes's, which Qwen 2.5 and 3 use too:

    <think>...</think>text<tool_call>
    {"name": "bash", "arguments": {"command": "ls"}}
    </tool_call>

A call that cannot be read is not dropped: it becomes a `ToolCall` with `error`, a sentence for the model, which the
agent loop gives back as the observation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, UNTHINK = "<think>", "</think>"
FORM = 'Write {"name": "TOOL", "arguments": {...}} between <tool_call> and </tool_call>.'
UNREADABLE = "unreadable_call"
"""The name recorded for a call whose own name could not be read."""


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


def parse_hermes(text: str, make_id: Callable[[int], str]) -> Parsed:
    """Take a reply apart. `make_id` names the n-th call of the reply. Never raises; linear in the text."""
    reasoning, rest = split_reasoning(text)
    content: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := rest.find(OPEN, at)) >= 0:
        content.append(rest[at:start])
        call, at = _read_call(rest, start + len(OPEN), make_id(len(calls)))
        calls.append(call)
    content.append(rest[at:])
    return Parsed("".join(content).strip(), reasoning, tuple(calls))


def split_reasoning(text: str) -> tuple[str | None, str]:
    """The reasoning block and what follows it. Calls inside the block are thoughts, not calls.

    A block without its opening tag is one that the template opened in the generation prompt; a block that is never
    closed was cut short, and all of it is reasoning.
    """
    opened = text.lstrip().startswith(THINK)
    end = text.find(UNTHINK)
    if end < 0:
        return (text.lstrip()[len(THINK) :].strip(), "") if opened else (None, text)
    if not opened and 0 <= text.find(OPEN) < end:
        return None, text
    head = text[:end].lstrip()
    return head.removeprefix(THINK).strip(), text[end + len(UNTHINK) :].lstrip("\n")


def checked_call(call_id: str, value: Any, raw: str) -> ToolCall:
    """A `ToolCall` from a decoded JSON value, with `error` where it is not a call."""
    if not isinstance(value, dict):
        return _malformed(call_id, raw, f"The tool call must be a JSON object, not {_kind(value)}. {FORM}")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return _malformed(call_id, raw, f'The tool call has no "name" that is a string. {FORM}')
    name = name.strip()
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = decode(arguments)
        except ValueError as error:
            return _malformed(call_id, raw, f'The "arguments" of {name!r} are text that is not JSON: {error}.', name)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return _malformed(
            call_id, raw, f'The "arguments" of {name!r} must be a JSON object, not {_kind(arguments)}.', name
        )
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw)


def decode(text: str) -> Any:
    """Strict JSON (no NaN, no Infinity); `ValueError` whatever is wrong with it, absurd nesting included."""
    value, end = _decode_at(text, 0)
    if text[end:].strip():
        raise ValueError(f"there is text after the JSON at character {end}")
    return value


def _read_call(text: str, start: int, call_id: str) -> tuple[ToolCall, int]:
    """The call whose body begins at `start`, and where the text goes on after it."""
    close = text.find(CLOSE, start)
    try:
        value, end = _decode_at(text, start)
    except ValueError as error:
        stop = close if close >= 0 else len(text)
        raw = text[start:stop].strip()
        if close < 0:
            why = f"The tool call was not finished: {error}, and </tool_call> is missing. {FORM}"
        else:
            why = f"The tool call is not valid JSON: {error}. {FORM}"
        return _malformed(call_id, raw, why), stop + (len(CLOSE) if close >= 0 else 0)
    # The JSON decides where the body ends: a string in it may hold </tool_call>.
    close = text.find(CLOSE, end)
    stop = close if close >= 0 else len(text)
    after = stop + (len(CLOSE) if close >= 0 else 0)
    raw = text[start:stop].strip()
    extra = text[end:stop].strip()
    if extra.startswith(OPEN):
        # The end tag is missing before the next call; the next call is read in its own right.
        return checked_call(call_id, value, text[start:end].strip()), text.find(OPEN, end)
    if extra:
        return _malformed(call_id, raw, f"There is text after the JSON of the tool call: {extra[:80]!r}. {FORM}"), after
    return checked_call(call_id, value, raw), after


def _malformed(call_id: str, raw: str, error: str, name: str = UNREADABLE) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=None, error=error, raw=raw)


def _decode_at(text: str, start: int) -> tuple[Any, int]:
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos - start}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(text, start, end) and not _is_text(value):
        raise ValueError("it holds half of a surrogate pair, which is no character")
    return value, end


def _is_text(value: Any) -> bool:
    """Whether all strings in a value can be written down: no file, terminal or tokenizer takes half a pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    return names.get(type(value), "null")


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""A character written as (half of) a pair of escapes."""

_DECODER = json.JSONDecoder(parse_constant=_no_constant)
