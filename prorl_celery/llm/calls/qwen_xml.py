"""Qwen3-Coder's form of tool calls: tags for the function and each parameter, every value as plain text.

    <tool_call>
    <function=bash>
    <parameter=command>
    ls -la
    </parameter>
    </function>
    </tool_call>

One newline at each end of a value belongs to the form. What a value is, the tool's schema tells: text stays text, all
else is read as JSON. Models leave the outer tags out at times; the function's are what counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from prorl_celery.llm.calls.base import (
    MakeId,
    Parsed,
    Schemas,
    ToolCall,
    decode,
    malformed,
    skip_space,
    split_reasoning,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
FORM = (
    "Write <tool_call><function=TOOL><parameter=NAME>VALUE</parameter></function></tool_call>, "
    "with one <parameter> for each argument."
)
_HEAD = re.compile(r"<function=([^<>\n]*)>")
_END = re.compile(r"</function>|<function=")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>")
_END_PARAMETER = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>|<function=|</tool_call>|$))")
"""The end of a value: only where another parameter, the end or the next call follows, for a value may hold the tag."""


def parse_qwen_xml(text: str, make_id: MakeId, tools: Schemas = ()) -> Parsed:
    """Take a reply apart, as `Parser`."""
    reasoning, rest = split_reasoning(text, FUNCTION)
    content: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := rest.find(FUNCTION, at)) >= 0:
        before = rest[at:start].rstrip()
        content.append(before.removesuffix(OPEN))
        call, at = _read_call(rest, start, make_id(len(calls)), tools)
        calls.append(call)
        behind = skip_space(rest, at)
        if rest.startswith(CLOSE, behind):
            at = behind + len(CLOSE)
    content.append(rest[at:])
    if not calls and OPEN in rest:
        # A call was begun in a form that is not this one: better told than taken for words.
        start = rest.find(OPEN)
        why = f"The tool call holds no <function=TOOL>. {FORM}"
        return Parsed(rest[:start].strip(), reasoning, (malformed(make_id(0), rest[start:].strip(), why),))
    return Parsed("".join(content).strip(), reasoning, tuple(calls))


def _read_call(text: str, start: int, call_id: str, tools: Schemas) -> tuple[ToolCall, int]:
    """The call whose function tag begins at `start`, and where the text goes on after it."""
    head = _HEAD.match(text, start)
    name = head[1].strip() if head else ""
    if head is None or not name:
        stop = _end(text, start + 1)
        return malformed(call_id, text[start:stop].strip(), f"The function has no name. {FORM}"), stop
    arguments: dict[str, Any] = {}
    at = head.end()
    while (opened := _PARAMETER.match(text, at)) is not None:
        key = opened[1].strip()
        closed = _END_PARAMETER.search(text, opened.end())
        if closed is None:
            why = f"The parameter {key!r} of {name!r} was not finished: </parameter> is missing. {FORM}"
            return malformed(call_id, text[start:].strip(), why, name), len(text)
        value = text[opened.end() : closed.start()].removeprefix("\n").removesuffix("\n")
        at = closed.end()
        try:
            arguments[key] = _typed(value, _schema(tools, name, key))
        except ValueError as error:
            why = f"The parameter {key!r} of {name!r} must be JSON: {error}."
            stop = _end(text, at)
            return malformed(call_id, text[start:stop].strip(), why, name), stop
    stop = _end(text, at)
    between = text[at:stop].removesuffix(END_FUNCTION).strip()
    raw = text[start:stop].strip()
    if between or not text[at:stop].endswith(END_FUNCTION):
        why = f"The call of {name!r} was not finished: </function> is missing. {FORM}"
        return malformed(call_id, raw, why, name), stop
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw), stop


def _end(text: str, at: int) -> int:
    """Where the function that goes on at `at` ends: behind its tag, or where the next call begins or the text ends."""
    found = _END.search(text, at)
    if found is None:
        return len(text)
    return found.end() if found[0] == END_FUNCTION else found.start()


def _schema(tools: Schemas, name: str, key: str) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function", {})
        if function.get("name") == name:
            found = function.get("parameters", {}).get("properties", {}).get(key, {})
            return found if isinstance(found, Mapping) else {}
    return {}


def _typed(value: str, schema: Mapping[str, Any]) -> Any:
    """A value as its schema has it. Raises `ValueError` for what is no JSON where the schema wants other than text."""
    kinds = _kinds(schema)
    text = value.strip()
    if "string" in kinds:
        return None if "null" in kinds and text == "null" else value
    if "boolean" in kinds and text.lower() in ("true", "false"):  # as Python writes them
        return text.lower() == "true"
    return decode(text)


def _kinds(schema: Mapping[str, Any]) -> Sequence[str]:
    """The types that a schema allows; text where it does not say."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return kind
    either = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(either, list):
        return ["string"]
    return [kind for other in either if isinstance(other, Mapping) for kind in _kinds(other)]
