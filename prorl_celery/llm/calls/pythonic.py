"""Llama 3.2's and 4's form of tool calls: the reply is a Python list of calls with keyword arguments, literals only.

    [bash(command="ls"), finish(answer="2")]

Read by Python's own grammar (`ast`), never run.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from prorl_celery.llm.calls.base import MakeId, Parsed, Schemas, ToolCall, malformed

TAGS = ("<|python_start|>", "<|python_end|>", "<|python_tag|>")
FORM = "Write [TOOL(NAME=VALUE, ...)] and nothing else, with values that are Python literals."
LONGEST = 1 << 20
"""Characters of a reply that are read as Python."""


def parse_pythonic(text: str, make_id: MakeId, tools: Schemas = ()) -> Parsed:
    """Take a reply apart, as `Parser`."""
    body = text
    for tag in TAGS:
        body = body.replace(tag, "")
    body = body.strip()
    if not _begins_a_call(body):
        return Parsed(text.strip(), None, ())
    try:
        if len(body) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST} characters")
        tree = ast.parse(body, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            raise ValueError("it is not a list of calls")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error) or "it is nested too deeply"
        return Parsed("", None, (malformed(make_id(0), body, f"The tool calls are not valid Python: {said}. {FORM}"),))
    return Parsed("", None, tuple(_call(node, body, make_id(n)) for n, node in enumerate(tree.elts)))


def _begins_a_call(body: str) -> bool:
    """Whether a reply means to call: a bracket, a name, a parenthesis."""
    if not body.startswith("["):
        return False
    name, bracket, _ = body[1:].lstrip().partition("(")
    return bool(bracket) and name.strip().replace(".", "_").replace("-", "_").isidentifier()


def _call(node: ast.expr, body: str, call_id: str) -> ToolCall:
    raw = ast.get_source_segment(body, node) or ""
    if not isinstance(node, ast.Call):
        return malformed(call_id, raw, f"{raw[:80]!r} is not a call. {FORM}")
    name = ast.unparse(node.func)
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return malformed(call_id, raw, f"The arguments of {name!r} must be given by name. {FORM}", name)
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        try:
            arguments[str(keyword.arg)] = _as_json(ast.literal_eval(keyword.value))
        except (ValueError, TypeError, RecursionError, MemoryError):
            why = f"The argument {keyword.arg!r} of {name!r} is not a literal that JSON has too. {FORM}"
            return malformed(call_id, raw, why, name)
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw)


def _as_json(value: Any) -> Any:
    """A literal as JSON has it: tuples as lists. Raises `ValueError`, `TypeError` for sets, bytes, infinities, halves
    of surrogate pairs.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return json.loads(text)
