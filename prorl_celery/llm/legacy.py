"""The token form `legacy`: POST /generate of the first server's wrapper around an engine.

    {"prompt_ids", "max_tokens", "temperature", "top_p", "seed"} -> {"response_ids", "logprobs"}

It takes no stop texts and no top_k, and does not say why a reply ended: the last id and the length tell.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from prorl_celery.errors import BackendError
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.wire import Sampled, TokenRequest, ask, checked_sample, read_json

PATH = "/generate"


async def generate_legacy(session: aiohttp.ClientSession, endpoint: Endpoint, request: TokenRequest) -> Sampled:
    """One call, not repeated. Raises `Busy`, `BackendError`, `ContextOverflow` as `wire.ask` does, and
    `BackendError` for sampling parameters that this form cannot carry.
    """
    data, seconds = await ask(session, endpoint, PATH, _body(endpoint, request), request)
    reply = read_json(endpoint, data)
    ids, logprobs, finish_reason = checked_sample(
        endpoint, request, reply.get("response_ids"), reply.get("logprobs"), _told(reply)
    )
    return Sampled(ids=ids, logprobs=logprobs, finish_reason=finish_reason, seconds=seconds)


def _body(endpoint: Endpoint, request: TokenRequest) -> bytes:
    sampling = request.sampling
    unsaid = [name for name, value in (("stop", sampling.stop), ("top_k", sampling.top_k)) if value]
    if unsaid:
        raise BackendError(f"backends of kind legacy cannot be told {' and '.join(unsaid)}", url=endpoint.url)
    fields: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if request.seed is not None:
        fields["seed"] = request.seed
    return f'{json.dumps(fields)[:-1]}, "prompt_ids": [{request.prompt_json}]}}'.encode()


def _told(reply: dict[str, Any]) -> str | None:
    """Wrappers that say why a reply ended are believed."""
    reason = reply.get("finish_reason")
    return reason if isinstance(reason, str) and reason else None
