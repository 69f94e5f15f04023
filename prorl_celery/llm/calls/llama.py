"""Llama 3's form of tool calls: the reply is one JSON object, or several with `;` between, and nothing else.

    {"name": "bash", "parameters": {"command": "ls"}}

`<|python_tag|>` may stand before. A reply that begins with anything else is words, JSON in it included.
"""

from __future__ import annotations

from prorl_celery.llm.calls.base import MakeId, Parsed, Schemas, ToolCall, checked_call, decode_at, malformed

TAG = "<|python_tag|>"
FORM = 'Write {"name": "TOOL", "parameters": {...}} and nothing else; several with ; between.'


def parse_llama(text: str, make_id: MakeId, tools: Schemas = ()) -> Parsed:
    """Take a reply apart, as `Parser`."""
    head, tag, body = text.partition(TAG)
    if not tag:
        head, body = "", text
    body = body.strip()
    if not (tag or _begins_a_call(body)):
        return Parsed(text.strip(), None, ())
    calls: list[ToolCall] = []
    at = 0
    while at < len(body):
        call, at = _read_call(body, at, make_id(len(calls)))
        calls.append(call)
    if not calls:
        calls.append(malformed(make_id(0), "", f"There is nothing after {TAG}. {FORM}"))
    return Parsed(head.strip(), None, tuple(calls))


def _begins_a_call(body: str) -> bool:
    """Whether a text without the tag means to call: a JSON object that says a name first. Else it may be an answer."""
    return body.startswith("{") and '"name"' in body[:200]


def _read_call(body: str, start: int, call_id: str) -> tuple[ToolCall, int]:
    try:
        value, end = decode_at(body, start)
    except ValueError as error:
        raw = body[start:]
        return malformed(call_id, raw, f"The tool call is not valid JSON: {error}. {FORM}"), len(body)
    raw = body[start:end].strip()
    rest = body[end:].lstrip()
    if rest and not rest.startswith(";"):
        why = f"There is text after the JSON of the tool call: {rest[:80]!r}. {FORM}"
        return malformed(call_id, body[start:], why), len(body)
    following = len(body) - len(rest[1:].lstrip()) if rest else len(body)
    key = (
        "arguments" if isinstance(value, dict) and "parameters" not in value and "arguments" in value else "parameters"
    )
    return checked_call(call_id, value, raw, form=FORM, key=key), following
