"""Llama 3's form of tool calls: the reply is one JSON object, or several with `;` between, and nothing else.

    {"name": "bash", "parameters": {"command": "ls"}}

`<|python_tag|>` may stand before. A reply that begins with anything else is words, JSON in it included; so is an object
that has a name but neither arguments nor a tool of that name, for it may be the answer.
"""

from __future__ import annotations

from typing import Any

from prorl_celery.llm.calls.base import (
    MakeId,
    Parsed,
    Schemas,
    ToolCall,
    checked_call,
    decode_at,
    malformed,
    skip_space,
)

TAG = "<|python_tag|>"
FORM = 'Write {"name": "TOOL", "parameters": {...}} and nothing else; several with ; between.'


def parse_llama(text: str, make_id: MakeId, tools: Schemas = ()) -> Parsed:
    """Take a reply apart, as `Parser`."""
    head, tag, body = text.partition(TAG)
    if not tag:
        head, body = "", text
    body = body.strip()
    if not (tag or _begins_a_call(body, tools)):
        return Parsed(text.strip(), None, ())
    calls: list[ToolCall] = []
    at = 0
    while at < len(body):
        call, at = _read_call(body, at, make_id(len(calls)))
        calls.append(call)
    if not calls:
        calls.append(malformed(make_id(0), "", f"There is nothing after {TAG}. {FORM}"))
    return Parsed(head.strip(), None, tuple(calls))


def _begins_a_call(body: str, tools: Schemas) -> bool:
    """Whether a text without the tag means to call: a JSON object that says a name first. Else it may be an answer."""
    if not body.startswith("{") or '"name"' not in body[:200]:
        return False
    try:
        value: Any = decode_at(body, 0)[0]
    except ValueError:
        return True  # begun as a call is: better told than taken for words
    known = {tool.get("function", {}).get("name") for tool in tools}
    return "parameters" in value or "arguments" in value or value.get("name") in known


def _read_call(body: str, start: int, call_id: str) -> tuple[ToolCall, int]:
    try:
        value, end = decode_at(body, start)
    except ValueError as error:
        raw = body[start:]
        return malformed(call_id, raw, f"The tool call is not valid JSON: {error}. {FORM}"), len(body)
    raw = body[start:end].strip()
    at = skip_space(body, end)
    if at < len(body) and body[at] != ";":
        why = f"There is text after the JSON of the tool call: {body[at : at + 80]!r}. {FORM}"
        return malformed(call_id, body[start:], why), len(body)
    following = skip_space(body, at + 1)
    key = (
        "arguments" if isinstance(value, dict) and "parameters" not in value and "arguments" in value else "parameters"
    )
    return checked_call(call_id, value, raw, form=FORM, key=key), following
