"""A model's chat template: messages and tools in, text out.

Templates come from the model's directory and are rendered as `transformers` renders them (the same Jinja options and
globals), without it: importing `transformers` would cost a worker seconds and hundreds of megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]


class TemplateError(ValueError):
    """The template does not parse, or refused the messages (`raise_exception`)."""


class ChatTemplate:
    """One compiled template. `tokens` are the names a template may use: `bos_token`, `eos_token` and so on."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source = source
        self._tokens = dict(tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template does not parse: {error}") from error

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *, add_generation_prompt: bool
    ) -> str:
        """The conversation as text. Raises `TemplateError` when the template refuses it."""
        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise TemplateError(f"the chat template refused the messages: {error}") from error


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for trainers that mask by template; here it means nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own `tojson` escapes for HTML, which would put `\\u003c` before the model."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


_strftime_now: Callable[[str], str] = lambda form: datetime.now().strftime(form)  # noqa: E731
