"""Mistral's forms of tool calls, after the token `[TOOL_CALLS]`.

    [TOOL_CALLS] [{"name": "bash", "arguments": {"command": "ls"}, "id": "123456789"}]      to tokenizer v7
    [TOOL_CALLS]bash[ARGS]{"command": "ls"}                                                 from v11 on; once per call

Of v11 there is one with `[CALL_ID]123456789` between name and arguments. The ids are not kept: ours are.
"""

from __future__ import annotations

import json

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

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MARKS = ("[THINK]", "[/THINK]")
"""Around the reasoning of those that were trained with tokens for it; others write `<think>`."""
FORM = 'Write [TOOL_CALLS] and then [{"name": "TOOL", "arguments": {...}}].'
FORM_ARGS = "Write [TOOL_CALLS]TOOL[ARGS]{...} for each call."


def parse_mistral(text: str, make_id: MakeId, tools: Schemas = ()) -> Parsed:
    """Take a reply apart, as `Parser`."""
    reasoning, rest = split_reasoning(text, OPEN, MARKS) if MARKS[0] in text else split_reasoning(text, OPEN)
    content, mark, body = rest.partition(OPEN)
    if not mark:
        return Parsed(rest.strip(), reasoning, ())
    body = body.strip()
    calls = _listed(body, make_id) if body.startswith(("[{", "[ ", "[\n", "[]", "{")) else _named(body, make_id)
    return Parsed(content.strip(), reasoning, calls)


def _listed(body: str, make_id: MakeId) -> tuple[ToolCall, ...]:
    """The older form: one JSON list, or a lone object."""
    try:
        value, end = decode_at(body, 0)
    except ValueError as error:
        return (malformed(make_id(0), body, f"The tool calls are not valid JSON: {error}. {FORM}"),)
    extra = body[end:].strip()
    if extra:
        return (malformed(make_id(0), body, f"There is text after the tool calls: {extra[:80]!r}. {FORM}"),)
    entries = value if isinstance(value, list) else [value]
    if not entries:
        return (malformed(make_id(0), body, f"The list of tool calls is empty. {FORM}"),)
    # Each with its own text, not the whole list's: a list of a thousand would be kept a thousand times.
    raws = [body] if len(entries) == 1 else [json.dumps(entry, ensure_ascii=False) for entry in entries]
    return tuple(
        checked_call(make_id(n), entry, raw, form=FORM)
        for n, (entry, raw) in enumerate(zip(entries, raws, strict=True))
    )


def _named(body: str, make_id: MakeId) -> tuple[ToolCall, ...]:
    """The newer form: the name, then the arguments; calls follow each other, with or without the mark again."""
    calls: list[ToolCall] = []
    at = 0
    while at < len(body):
        call_id = make_id(len(calls))
        args = body.find(ARGS, at)
        head = body[at : args if args >= 0 else len(body)]
        name = head.partition(CALL_ID)[0].removeprefix(OPEN).strip()
        if args < 0 or not name:
            calls.append(malformed(call_id, body[at:], f"The tool call has no name before [ARGS]. {FORM_ARGS}"))
            break
        start = args + len(ARGS)
        try:
            value, end = decode_at(body, start)
        except ValueError as error:
            why = f"The arguments of {name!r} are not valid JSON: {error}. {FORM_ARGS}"
            calls.append(malformed(call_id, body[at:], why, name))
            break
        calls.append(checked_call(call_id, {"name": name, "arguments": value}, body[at:end], form=FORM_ARGS))
        behind = skip_space(body, end)
        if behind < len(body) and body.find(ARGS, behind) < 0:
            why = f"There is text after the tool calls: {body[behind : behind + 80]!r}. {FORM_ARGS}"
            calls[-1] = malformed(call_id, body[at:], why, name)
            break
        at = behind
    if not calls:
        calls.append(malformed(make_id(0), "", f"There is nothing after [TOOL_CALLS]. {FORM_ARGS}"))
    return tuple(calls)
