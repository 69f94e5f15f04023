"""Hermes's form of tool calls, which Qwen 2.5 and 3 use too.

<think>...</think>text<tool_call>
{"name": "bash", "arguments": {"command": "ls"}}
</tool_call>
"""

from __future__ import annotations

from prorl_celery.llm.calls.base import (
    MakeId,
    Parsed,
    Schemas,
    ToolCall,
    checked_call,
    decode_at,
    malformed,
    skip_space,
    split_reasoning,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = 'Write {"name": "TOOL", "arguments": {...}} between <tool_call> and </tool_call>.'


def parse_hermes(text: str, make_id: MakeId, tools: Schemas = ()) -> Parsed:
    """Take a reply apart, as `Parser`."""
    reasoning, rest = split_reasoning(text, OPEN)
    content: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := rest.find(OPEN, at)) >= 0:
        content.append(rest[at:start])
        call, at = _read_call(rest, start + len(OPEN), make_id(len(calls)))
        calls.append(call)
    content.append(rest[at:])
    return Parsed("".join(content).strip(), reasoning, tuple(calls))


def _read_call(text: str, start: int, call_id: str) -> tuple[ToolCall, int]:
    """The call whose body begins at `start`, and where the text goes on after it."""
    try:
        value, end = decode_at(text, start)
    except ValueError as error:
        close = text.find(CLOSE, start)
        stop = close if close >= 0 else len(text)
        raw = text[start:stop].strip()
        if close < 0:
            why = f"The tool call was not finished: {error}, and </tool_call> is missing. {FORM}"
        else:
            why = f"The tool call is not valid JSON: {error}. {FORM}"
        return malformed(call_id, raw, why), stop + (len(CLOSE) if close >= 0 else 0)
    # The JSON decides where the body ends: a string in it may hold </tool_call>.
    following = skip_space(text, end)
    if text.startswith(OPEN, following):
        # The end tag is missing before the next call; the next call is read in its own right.
        return checked_call(call_id, value, text[start:end].strip(), form=FORM), following
    close = text.find(CLOSE, end)
    stop = close if close >= 0 else len(text)
    after = stop + (len(CLOSE) if close >= 0 else 0)
    raw = text[start:stop].strip()
    extra = text[end:stop].strip()
    if extra:
        return malformed(call_id, raw, f"There is text after the JSON of the tool call: {extra[:80]!r}. {FORM}"), after
    return checked_call(call_id, value, raw, form=FORM), after
