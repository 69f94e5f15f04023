"""Asks an engine to give up one request and to answer it with the tokens that it has (vLLM's `/abort_requests`).

Only some engines know how to, and only when they are told that they may (vLLM: `VLLM_SERVER_DEV_MODE=1`); closing the
connection ends a request everywhere, and loses its tokens.
"""

from __future__ import annotations

import aiohttp

from prorl_celery.llm.endpoint import Endpoint

PATH = "/abort_requests"
ASK_SECONDS = 2.0
NAMES = {"vllm": ("cmpl-{}", "cmpl-{}-0"), "vllm_generate": ("generate-tokens-{}",)}
"""What the engine calls a request whose `X-Request-Id` we know, by kind of backend."""


async def give_up(session: aiohttp.ClientSession, endpoint: Endpoint, request_id: str) -> bool:
    """Whether the engine took the wish; its answer to the request is on its way then."""
    names = [name.format(request_id) for name in NAMES.get(endpoint.kind, ())]
    if not names:
        return False
    try:
        async with session.post(
            endpoint.base + PATH,
            json={"request_ids": names},
            headers=endpoint.headers,
            timeout=aiohttp.ClientTimeout(total=ASK_SECONDS),
            allow_redirects=False,
        ) as response:
            return 200 <= response.status < 300
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
