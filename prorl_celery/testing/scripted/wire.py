"""Requests as vLLM 0.32 takes them, and what it refuses.

Given: request bodies. Gives: prompt ids and limits, or `Refused` with the status and vLLM's wording of an
error.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from prorl_celery.testing.scripted.engine import Engine
from prorl_celery.testing.scripted.tokens import ROLES, ScriptedTokenizer

COMPLETION_TOKENS = 16  # the OpenAI default of /v1/completions, which vLLM keeps
NOT_DONE = {
    "stream": "the scripted backend does not stream",
    "echo": "the scripted backend does not echo",
}


class Refused(Exception):
    """A request that the server does not serve."""

    def __init__(self, status: int, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, parameter)


def error_body(status: int, message: str, parameter: str | None = None) -> dict[str, Any]:
    """An error as vLLM words it."""
    kinds = {404: "NotFoundError", 429: "RateLimitError", 500: "InternalServerError"}
    kind = kinds.get(status, "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


def check_common(body: Mapping[str, Any], engine: Engine) -> None:
    """Refuse another model than ours, and what this server does not do."""
    model = body.get("model", engine.model_id)
    if model != engine.model_id:
        raise Refused(404, f"The model `{model}` does not exist.", "model")
    for name, message in NOT_DONE.items():
        if body.get(name):
            raise Refused(400, message, name)


def check_sampling(parameters: Mapping[str, Any]) -> None:
    """Refuse more than one sample, and a seed that is none."""
    if parameters.get("n", 1) != 1:
        raise Refused(400, "the scripted backend samples one completion a call", "n")
    seed = parameters.get("seed")
    if seed is not None and type(seed) is not int:
        raise Refused(400, "seed must be an integer", "seed")


def cache_salt(body: Mapping[str, Any]) -> str | None:
    """What keeps the request's prefix cache apart; like vLLM, refuses an empty one."""
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise Refused(400, "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    return salt


def prompt_ids(value: Any, engine: Engine, name: str = "prompt") -> array[int]:
    """The ids of a prompt given as ids or text, checked."""
    if not isinstance(value, str | list):
        raise Refused(400, f"{name} must be text or a list of token ids", name)
    try:
        ids = array("I", engine.tokenizer.encode(value) if isinstance(value, str) else value)
    except OverflowError as error:
        raise Refused(400, f"Token id is out of vocabulary: {error}", name) from error
    except TypeError as error:
        raise Refused(400, f"{name} must be text or a list of token ids: {error}", name) from error
    if not ids:
        raise Refused(400, "The prompt is empty: at least one token is needed.", name)
    if (largest := max(ids)) >= engine.tokenizer.vocabulary_size:
        raise Refused(400, f"Token id {largest} is out of vocabulary", name)
    limit, size = engine.max_model_len, len(ids)
    if size >= limit:
        message = f"This model's maximum context length is {limit} tokens, but the prompt has {size} tokens."
        raise Refused(400, message, name)
    return ids


def max_tokens(body: Mapping[str, Any], default: int) -> int:
    """The limit of the sample."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                raise Refused(400, f"{name} must be at least 1, got {value!r}.", name)
            return value
    return default


def chat_text(body: Mapping[str, Any], tokenizer: ScriptedTokenizer) -> str:
    """A chat's prompt, as the template renders it."""
    messages, tools = body.get("messages"), body.get("tools")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Refused(400, "messages must be a list of at least one message", "messages")
    if unknown := {str(m.get("role")) for m in messages} - {*ROLES, "tool"}:
        raise Refused(400, f"unknown role: {', '.join(sorted(unknown))}", "messages")
    try:
        return tokenizer.render(messages, tools, add_generation_prompt=body.get("add_generation_prompt", True))
    except ValueError as error:
        raise Refused(400, str(error), "messages") from error
