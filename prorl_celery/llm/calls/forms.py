"""Which form of tool calls a model speaks: the one that its chat template writes.

A template renders calls of its own history in the form that the model was trained on, so its text tells. The order
matters: Qwen3-Coder's template writes `<tool_call>` too, and around `<function=`.
"""

from __future__ import annotations

from functools import cache

from prorl_celery.llm.calls.base import Parser
from prorl_celery.llm.calls.hermes import parse_hermes
from prorl_celery.llm.calls.llama import parse_llama
from prorl_celery.llm.calls.mistral import parse_mistral
from prorl_celery.llm.calls.pythonic import parse_pythonic
from prorl_celery.llm.calls.qwen_xml import parse_qwen_xml

FORMS: dict[str, Parser] = {
    "hermes": parse_hermes,
    "qwen_xml": parse_qwen_xml,
    "llama": parse_llama,
    "pythonic": parse_pythonic,
    "mistral": parse_mistral,
}
DEFAULT = "hermes"
"""For templates that show no calls: the form most open models can follow when a prompt asks for it."""

_SIGNS = (
    ("<function=", "qwen_xml"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("[func_name", "pythonic"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama"),
    ("<|start_header_id|>", "llama"),
)
"""What a template holds, and the form that it then writes; the first that is there decides."""


@cache
def form_of(template: str) -> str:
    """The name of the form that a chat template's source writes."""
    return next((form for sign, form in _SIGNS if sign in template), DEFAULT)
