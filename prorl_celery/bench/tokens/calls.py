"""What our model call adds to the bare one: a turn of a conversation beside a POST of the same prompt, taking turns.

The scripted backend answers at once. Ours is all that a job waits for in a turn: the way to the model loop's thread and
back, the reply checked and read as text and calls. (Its first prompt, rendered and encoded once for a job, is apart.)
The bare ones send bytes that are ready and parse the JSON that comes back: by aiohttp, which ours is built on and which
is the faster, and by httpx.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp

from prorl_celery.bench.report import BenchFailed, Report, median
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.conversation import TokenConversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.llm.template import Message
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing import ScriptedBackend

FIGURES = (
    "added_call_ms_median",
    "added_call_over_httpx_ms_median",
    "our_call_ms_median",
    "first_prompt_ms_median",
    "aiohttp_call_ms_median",
    "httpx_call_ms_median",
)
WARM_UP = 20
CALL_SECONDS = 60.0
MESSAGES: list[Message] = [
    {"role": "system", "content": "You mend programs. " * 40},
    {"role": "user", "content": "The tests fail:\n" + "AssertionError: 3 != 4 in line 17 of tests/test_core.py\n" * 60},
]
SAMPLING = SamplingParams.model_validate({"max_tokens": 256, "seed": 7})


def calls(report: Report, count: int) -> None:
    """So many calls of each kind. Raises `BenchFailed` when they do not sample the same."""
    with ScriptedBackend(policy="toy", max_model_len=16_384) as backend, NeverCancelled() as never:
        endpoint = Endpoint(
            url=backend.url, model=backend.model, tokenizer=str(backend.tokenizer_dir), policy_version=0
        )
        model_loop = ModelLoop()
        try:
            asyncio.run(_take_turns(report, count, endpoint, model_loop, never))
        finally:
            model_loop.stop()


async def _take_turns(
    report: Report, count: int, endpoint: Endpoint, model_loop: ModelLoop, never: NeverCancelled
) -> None:
    import httpx2  # openai's transport; not for a worker

    url = endpoint.base + "/v1/completions"
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session, httpx2.AsyncClient(trust_env=False, timeout=CALL_SECONDS) as client:

        async def by_aiohttp(body: bytes) -> bytes:
            async with session.post(url, data=body, headers=headers) as response:
                return await response.read()

        async def by_httpx(body: bytes) -> bytes:
            return (await client.post(url, content=body, headers=headers)).content

        took: dict[str, list[float]] = {"opened": [], "ours": [], "aiohttp": [], "httpx": []}
        for _ in range(WARM_UP + count):
            began = time.perf_counter()
            conversation = _ours(endpoint, model_loop, never)
            took["opened"].append(time.perf_counter() - began)
            began = time.perf_counter()
            reply = conversation.sample()  # blocks: nothing else runs here meanwhile
            took["ours"].append(time.perf_counter() - began)
            body = _body(endpoint, list(reply.delta_ids))
            for name, post in (("aiohttp", by_aiohttp), ("httpx", by_httpx)):
                began = time.perf_counter()
                found = json.loads(await post(body))
                took[name].append(time.perf_counter() - began)
                if found["choices"][0]["token_ids"] != list(reply.sampled_ids):
                    raise BenchFailed("the bare call sampled other tokens than ours")
    opened, ours, bare, httpx = (median(seconds[WARM_UP:]) * 1000 for seconds in took.values())
    report.figures |= {
        "added_call_ms_median": ours - bare,
        "added_call_over_httpx_ms_median": ours - httpx,
        "our_call_ms_median": ours,
        "first_prompt_ms_median": opened,
        "aiohttp_call_ms_median": bare,
        "httpx_call_ms_median": httpx,
    }


def _ours(endpoint: Endpoint, model_loop: ModelLoop, never: NeverCancelled) -> TokenConversation:
    request = ConversationRequest(
        job_id="bench-call",
        messages=MESSAGES,
        sampling=SAMPLING,
        model_loop=model_loop,
        cancel=never,
        deadline=lambda: CALL_SECONDS,
    )
    return TokenConversation(endpoint, request)


def _body(endpoint: Endpoint, prompt: list[int]) -> bytes:
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "prompt": prompt,
        "max_tokens": SAMPLING.max_tokens,
        "temperature": SAMPLING.temperature,
        "seed": SAMPLING.seed,
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }
    return json.dumps(fields).encode()
