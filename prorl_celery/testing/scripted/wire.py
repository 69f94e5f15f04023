"""The wire forms: what vLLM 0.32 answers on each route, as observed, and what it refuses.

Given: request bodies and generations. Gives: JSON-ready answers, or `Refused` with the status and the
message.
"""

from __future__ import annotations

import json
import math
import re
import time
from array import array
from collections.abc import Mapping
from typing import Any

from prorl_celery.testing.scripted.engine import Call, Engine, Generation
from prorl_celery.testing.scripted.tokens import ROLES, ScriptedTokenizer

OWNER = "prorl scripted backend (test double)"
COMPLETION_TOKENS = 16  # the OpenAI default of /v1/completions, which vLLM keeps
_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


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
    if body.get("stream"):
        raise Refused(400, "the scripted backend does not stream", "stream")
    if body.get("n", 1) != 1:
        raise Refused(400, "the scripted backend samples one completion a call", "n")
    if body.get("echo"):
        raise Refused(400, "the scripted backend does not echo", "echo")
    seed = body.get("seed")
    if seed is not None and type(seed) is not int:
        raise Refused(400, "seed must be an integer", "seed")


def prompt_ids(value: Any, engine: Engine) -> list[int]:
    """The ids of a prompt given as ids or text, checked."""
    if isinstance(value, str):
        ids = engine.tokenizer.encode(value)
    elif isinstance(value, list):
        try:
            array("i", value)
        except (TypeError, OverflowError) as error:
            raise Refused(400, f"prompt must be text or a list of token ids: {error}", "prompt") from error
        ids = value
    else:
        raise Refused(400, "prompt must be text or a list of token ids", "prompt")
    if not ids:
        raise Refused(400, "The prompt is empty: at least one token is needed.", "prompt")
    if max(ids) >= engine.tokenizer.vocabulary_size or min(ids) < 0:
        raise Refused(400, f"Token id {max(ids)} is out of vocabulary", "prompt")
    if len(ids) >= engine.max_model_len:
        limit, size = engine.max_model_len, len(ids)
        raise Refused(
            400,
            f"This model's maximum context length is {limit} tokens, but the prompt has {size} tokens.",
            "prompt",
        )
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


def chat_ids(body: Mapping[str, Any], tokenizer: ScriptedTokenizer) -> list[int]:
    """The ids of a chat's prompt, as the template renders it."""
    messages, tools = body.get("messages"), body.get("tools")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Refused(400, "messages must be a list of at least one message", "messages")
    if unknown := {str(m.get("role")) for m in messages} - {*ROLES, "tool"}:
        raise Refused(400, f"unknown role: {', '.join(sorted(unknown))}", "messages")
    try:
        text = tokenizer.render(messages, tools, add_generation_prompt=body.get("add_generation_prompt", True))
    except ValueError as error:
        raise Refused(400, str(error), "messages") from error
    return tokenizer.encode(text)


def completion(body: Mapping[str, Any], call: Call, made: Generation, engine: Engine) -> dict[str, Any]:
    """The answer of `/v1/completions`."""
    tokenizer, logprobs = engine.tokenizer, _claimed(call, made)
    choice: dict[str, Any] = {
        "index": 0,
        "text": tokenizer.decode(made.sampled_ids, skip_special=True),
        "logprobs": None,
        "finish_reason": made.finish_reason,
        "stop_reason": None,
        "prompt_logprobs": None,
        "token_ids": None,
        "prompt_token_ids": None,
    }
    if body.get("logprobs") is not None:
        tokens = _token_texts(body, tokenizer, made)
        offsets, offset = [], 0
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        choice["logprobs"] = {
            "text_offset": offsets,
            "token_logprobs": logprobs,
            "tokens": tokens,
            "top_logprobs": [{token: value} for token, value in zip(tokens, logprobs, strict=True)],
        }
    if _gives_ids(body, call):
        choice["token_ids"], choice["prompt_token_ids"] = made.sampled_ids, call.record.prompt_ids
    return _answer("text_completion", call, made, engine) | {"choices": [choice]}


def chat_completion(body: Mapping[str, Any], call: Call, made: Generation, engine: Engine) -> dict[str, Any]:
    """The answer of `/v1/chat/completions`; tool calls are parsed as vLLM does it: all of them or none."""
    tokenizer = engine.tokenizer
    text = tokenizer.decode(made.sampled_ids, skip_special=True)
    content, calls = parse_tool_calls(text, call.record.request_id) if body.get("tools") else (text, [])
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": content, "refusal": None, "tool_calls": calls},
        "logprobs": None,
        "finish_reason": "tool_calls" if calls and made.finish_reason == "stop" else made.finish_reason,
        "stop_reason": None,
        "token_ids": None,
    }
    if body.get("logprobs"):
        tokens = _token_texts(body, tokenizer, made)
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": []}
                for token, value in zip(tokens, _claimed(call, made), strict=True)
            ]
        }
    answer = _answer("chat.completion", call, made, engine) | {"choices": [choice], "prompt_token_ids": None}
    if _gives_ids(body, call):
        choice["token_ids"], answer["prompt_token_ids"] = made.sampled_ids, call.record.prompt_ids
    return answer


def parse_tool_calls(text: str, request_id: str) -> tuple[str | None, list[dict[str, Any]]]:
    """The text before the first call and the calls; text alone when one of them does not parse."""
    calls = []
    for index, match in enumerate(_TOOL_CALL.finditer(text)):
        try:
            parsed = json.loads(match.group(1))
            name, arguments = parsed["name"], parsed["arguments"]
        except (ValueError, KeyError, TypeError):
            return text, []
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({"id": f"call-{request_id}-{index}", "type": "function", "function": function})
    if not calls:
        return text, []
    return text[: text.index("<tool_call>")].rstrip("\n") or None, calls


def models(engine: Engine) -> dict[str, Any]:
    """The answer of `/v1/models`: plainly a test double."""
    card = {
        "id": engine.model_id,
        "object": "model",
        "created": 0,
        "owned_by": OWNER,
        "root": engine.model_id,
        "parent": None,
        "max_model_len": engine.max_model_len,
        "permission": [],
    }
    return {"object": "list", "data": [card]}


def metrics(engine: Engine) -> str:
    """The Prometheus text of vLLM's counters that the service reads."""
    ledger = engine.ledger
    rows = (
        ("num_requests_running", "gauge", ledger.live),
        ("num_requests_waiting", "gauge", 0),
        ("prefix_cache_queries_total", "counter", ledger.prompt_tokens),
        ("prefix_cache_hits_total", "counter", ledger.cached_tokens),
        ("prompt_tokens_total", "counter", ledger.prompt_tokens),
        ("prompt_tokens_cached_total", "counter", ledger.cached_tokens),
        ("generation_tokens_total", "counter", ledger.completion_tokens),
        ("kv_cache_usage_perc", "gauge", 0),
    )
    lines = ["# The prorl scripted backend: a test double, no engine."]
    for name, kind, value in rows:
        lines.append(f"# TYPE vllm:{name} {kind}")
        lines.append(f'vllm:{name}{{engine="0",model_name="{engine.model_id}"}} {float(value)}')
    return "\n".join(lines) + "\n"


def _answer(kind: str, call: Call, made: Generation, engine: Engine) -> dict[str, Any]:
    prompt, sampled = len(call.record.prompt_ids), len(made.sampled_ids)
    return {
        "id": call.record.request_id,
        "object": kind,
        "created": int(time.time()),
        "model": engine.model_id,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": {"cached_tokens": made.cached_tokens},
        },
    }


def _gives_ids(body: Mapping[str, Any], call: Call) -> bool:
    return bool(body.get("return_token_ids")) and not (call.failure and call.failure.mode == "no_ids")


def _claimed(call: Call, made: Generation) -> list[float]:
    return [math.nan] * len(made.logprobs) if call.failure and call.failure.mode == "nan" else made.logprobs


def _token_texts(body: Mapping[str, Any], tokenizer: ScriptedTokenizer, made: Generation) -> list[str]:
    if body.get("return_tokens_as_token_ids"):
        return [f"token_id:{token}" for token in made.sampled_ids]
    return [tokenizer.token_texts[token] for token in made.sampled_ids]
