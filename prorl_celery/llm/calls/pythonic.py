"""Llama 3.2's and 4's form of tool calls: the reply is a Python list of calls with keyword arguments, literals only.

    [bash(command="ls"), finish(answer="2")]

Read by Python's own grammar (`ast`), never run.
"""

from __future__ import annotations

import ast
import json
import re
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
    source = _Source(body)
    return Parsed("", None, tuple(_call(node, source.of(node), make_id(n)) for n, node in enumerate(tree.elts)))


class _Source:
    """A text that nodes were parsed from. `ast.get_source_segment` takes the whole of it apart for each node."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        self._lines = [0, *(newline.end() for newline in re.finditer(rb"\r\n|\r|\n", self._data))]

    def of(self, node: ast.expr) -> str:
        """What a node was parsed from."""
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return self._data[start:end].decode("utf-8", "replace")


def _begins_a_call(body: str) -> bool:
    """Whether a reply means to call: a bracket, a name, a parenthesis."""
    if not body.startswith("["):
        return False
    name, bracket, _ = body[1:].lstrip().partition("(")
    return bool(bracket) and name.strip().replace(".", "_").replace("-", "_").isidentifier()


def _call(node: ast.expr, raw: str, call_id: str) -> ToolCall:
    name = _name(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name is None:
        return malformed(call_id, raw, f"{raw[:80]!r} is not a call of a tool by its name. {FORM}")
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


def _name(node: ast.expr) -> str | None:
    """A name with its dots; None for anything else. A loop: a name may have thousands of dots."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else None


def _as_json(value: Any) -> Any:
    """A literal as JSON has it: tuples as lists. Raises `ValueError`, `TypeError` for sets, bytes, infinities, halves
    of surrogate pairs.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return json.loads(text)
