"""The token form `vllm`: POST /v1/completions with the prompt's ids, answered with sampled ids and log-probabilities.

Every sampling parameter is sent, the neutral ones too: a server fills what is missing from the model's own
`generation_config.json`, and then the policy that sampled is not the one that the trainer believes in.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from prorl_celery.errors import BackendError
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.wire import (
    Sampled,
    TokenRequest,
    ask,
    cached_tokens,
    checked_ids,
    checked_sample,
    finish_reason_of,
    only_choice,
    read_json,
)

PATH = "/v1/completions"


async def complete(session: aiohttp.ClientSession, endpoint: Endpoint, request: TokenRequest) -> Sampled:
    """One call, not repeated. Raises `Busy`, `BackendError`, `ContextOverflow` as `wire.ask` does."""
    data, seconds = await ask(session, endpoint, PATH, _body(endpoint, request), request)
    return _read(endpoint, request, data, seconds)


def _body(endpoint: Endpoint, request: TokenRequest) -> bytes:
    sampling = request.sampling
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }
    if request.seed is not None:
        fields["seed"] = request.seed
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if request.cache_salt is not None:
        fields["cache_salt"] = request.cache_salt
    # The ids are text already; json.dumps would walk through thousands of them again in every turn.
    return f'{json.dumps(fields)[:-1]}, "prompt": [{request.prompt_json}]}}'.encode()


def _read(endpoint: Endpoint, request: TokenRequest, data: bytes, seconds: float) -> Sampled:
    data, checked = _without_echo(data, request)
    reply = read_json(endpoint, data)
    choice = only_choice(endpoint, reply)
    if not checked and choice.get("prompt_token_ids") is not None:
        used = checked_ids(endpoint, choice["prompt_token_ids"], None, "prompt ids")
        if used != request.prompt_ids:
            raise BackendError(f"{endpoint.base} used other prompt ids than it was sent", url=endpoint.url)
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    ids, checked_values, finish_reason = checked_sample(
        endpoint, request, choice.get("token_ids"), values, finish_reason_of(endpoint, choice)
    )
    return Sampled(
        ids=ids,
        logprobs=checked_values,
        finish_reason=finish_reason,
        seconds=seconds,
        cached_tokens=cached_tokens(reply),
    )


def _without_echo(data: bytes, request: TokenRequest) -> tuple[bytes, bool]:
    """The reply without the echoed prompt, and whether that was there and equal.

    A prompt of 32k ids costs milliseconds to parse and to compare as numbers; as bytes it costs microseconds. The
    quotes make the match sure: within a JSON string they would be escaped. Other spacing falls back to parsing.
    """
    echo = f'"prompt_token_ids":[{request.prompt_json}]'.encode()
    at = data.find(echo)
    if at < 0:
        return data, False
    return data[:at] + b'"prompt_token_ids":null' + data[at + len(echo) :], True
