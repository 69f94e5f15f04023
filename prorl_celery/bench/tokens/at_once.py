"""Two thousand model calls at once: how much longer than the backend's answer the slowest hundredth takes, beside bare
POSTs of the same prompt.

Public report (httpx #1171): with a pool of a hundred connections calls wait in waves, and time out. Ours and the bare
ones go through sessions without a limit, in turns; the scripted backend answers each after the same time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from array import array
from collections.abc import Awaitable, Callable

import aiohttp

from prorl_celery.bench.report import BenchFailed, Report, percentile
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.completions import complete
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.wire import TokenRequest, repeated
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing import ScriptedBackend

FIGURES = ("calls_at_once", "calls_at_once_peak", "calls_at_once_added_s_p99", "bare_at_once_added_s_p99")
ANSWER_SECONDS = 10.0
"""Longer than it takes to begin them all, on two cores too: all are in flight before the first answer."""
LIMIT_SECONDS = 300.0
SPARE_DESCRIPTORS = 500
PROMPT = array("i", range(100, 1100))

Call = Callable[[], Awaitable[object]]


def at_once(report: Report, count: int) -> None:
    """So many calls of each kind. Raises `BenchFailed` when one fails, or where too few files may be open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < count + SPARE_DESCRIPTORS:
        raise BenchFailed(f"a process may have {most} descriptors here; {count} calls at once want more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ScriptedBackend(policy="toy", latency=ANSWER_SECONDS, max_model_len=16_384) as backend:
        endpoint = Endpoint(url=backend.url, model=backend.model, tokenizer=str(backend.tokenizer_dir))
        model_loop = ModelLoop()
        try:
            with NeverCancelled() as never:
                bare = model_loop.call(lambda: _bare(endpoint, count), cancel=never, timeout=LIMIT_SECONDS)
                ours = model_loop.call(lambda: _ours(model_loop, endpoint, count), cancel=never, timeout=LIMIT_SECONDS)
        finally:
            model_loop.stop()
        stats = backend.stats()
    if stats["outcomes"] != {"stop": 2 * count}:
        raise BenchFailed(f"not every call came to its end: {stats['outcomes']}")
    report.figures |= {
        "calls_at_once": float(count),
        "calls_at_once_peak": float(stats["peak_live"]),
        "calls_at_once_added_s_p99": percentile(ours, 99) - ANSWER_SECONDS,
        "bare_at_once_added_s_p99": percentile(bare, 99) - ANSWER_SECONDS,
    }


async def _ours(model_loop: ModelLoop, endpoint: Endpoint, count: int) -> list[float]:
    session = model_loop.session
    request = TokenRequest(
        prompt_ids=PROMPT,
        prompt_json=",".join(map(str, PROMPT)),
        max_tokens=64,
        sampling=SamplingParams.model_validate({}),
        seed=1,
        request_id="at-once",
        vocab_size=1 << 20,
    )
    return await _timed(lambda: repeated(lambda: complete(session, endpoint, request)), count)


async def _bare(endpoint: Endpoint, count: int) -> list[float]:
    body = json.dumps(
        {
            "model": endpoint.model,
            "prompt": list(PROMPT),
            "max_tokens": 64,
            "seed": 1,
            "logprobs": 0,
            "return_token_ids": True,
        }
    ).encode()
    headers = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def post() -> object:
            async with session.post(endpoint.base + "/v1/completions", data=body, headers=headers) as response:
                return json.loads(await response.read())["choices"][0]["token_ids"]

        return await _timed(post, count)


async def _timed(call: Call, count: int) -> list[float]:
    """How long each of so many calls takes that begin in the same moment."""

    async def one() -> float:
        began = time.perf_counter()
        await call()
        return time.perf_counter() - began

    return await asyncio.gather(*(one() for _ in range(count)))
