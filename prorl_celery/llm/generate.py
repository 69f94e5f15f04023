"""The token form `vllm_generate`: POST /inference/v1/generate, which also tells under which weights each token was
sampled.

vLLM 0.32 serves it with `--enable-scale-out`. Its weights' version is text (`/update_weight_version`); one that is a
whole number is the policy version, another is unknown, and `default` is what it says of weights whose version nobody
told it: then the version is the one that we were told. A reply may span several: `weight_versions` lists them as
`{"version", "start", "end"}`, positions among the sampled tokens.
"""

from __future__ import annotations

import json
from array import array
from typing import Any

import aiohttp

from prorl_celery.errors import BackendError
from prorl_celery.jobs.turns import ids_array
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.sampling import UNKNOWN_VERSION
from prorl_celery.llm.wire import (
    Sampled,
    TokenRequest,
    ask,
    cached_tokens,
    checked_sample,
    finish_reason_of,
    only_choice,
    read_json,
)

PATH = "/inference/v1/generate"
NEVER_TOLD = "default"


async def generate(session: aiohttp.ClientSession, endpoint: Endpoint, request: TokenRequest) -> Sampled:
    """One call, not repeated. Raises `Busy`, `BackendError`, `ContextOverflow` as `wire.ask` does."""
    data, seconds = await ask(session, endpoint, PATH, _body(endpoint, request), request)
    reply = read_json(endpoint, data)
    choice = only_choice(endpoint, reply)
    ids, logprobs, finish_reason = checked_sample(
        endpoint, request, choice.get("token_ids"), _logprobs(choice), finish_reason_of(endpoint, choice)
    )
    return Sampled(
        ids=ids,
        logprobs=logprobs,
        finish_reason=finish_reason,
        seconds=seconds,
        versions=_versions(endpoint, choice.get("weight_versions"), len(ids)),
        cached_tokens=cached_tokens(reply),
    )


def _body(endpoint: Endpoint, request: TokenRequest) -> bytes:
    sampling = request.sampling
    # The neutral values too: see completions.py.
    parameters: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 0,
        "skip_special_tokens": False,
    }
    if request.seed is not None:
        parameters["seed"] = request.seed
    if sampling.stop:
        parameters["stop"] = list(sampling.stop)
    fields: dict[str, Any] = {"model": endpoint.model, "sampling_params": parameters}
    if request.cache_salt is not None:
        fields["cache_salt"] = request.cache_salt
    return f'{json.dumps(fields)[:-1]}, "token_ids": [{request.prompt_json}]}}'.encode()


def _logprobs(choice: dict[str, Any]) -> list[Any] | None:
    """The sampled tokens' log-probabilities, where they are in the reply; each beside its own id."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        return None
    ids = choice.get("token_ids")
    told = [entry.get("token_id") for entry in content]
    if any(token is not None for token in told) and told != ids:
        return None
    return [entry.get("logprob") for entry in content]


def _versions(endpoint: Endpoint, spans: Any, count: int) -> array[int] | None:
    """The version of each token; None where the reply does not tell. Raises `BackendError` for spans with gaps."""
    if not spans or _was_never_told(spans):
        return None
    versions = ids_array()
    for span in spans if isinstance(spans, list) else [spans]:
        start, end = (span.get("start"), span.get("end")) if isinstance(span, dict) else (None, None)
        if type(start) is not int or type(end) is not int or start != len(versions) or not start <= end <= count:
            break
        versions.extend(ids_array([_number(span.get("version"))]) * (end - start))
    if len(versions) != count:
        raise BackendError(
            f"{endpoint.base} answered weight versions that do not cover the sampled ids", url=endpoint.url
        )
    return versions


def _was_never_told(spans: Any) -> bool:
    return isinstance(spans, list) and all(isinstance(s, dict) and s.get("version") == NEVER_TOLD for s in spans)


def _number(version: Any) -> int:
    text = str(version)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else UNKNOWN_VERSION
