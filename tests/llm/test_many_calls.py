"""Two thousand model calls at once: no pool holds any of them up."""

from __future__ import annotations

import asyncio
import resource
from array import array
from collections.abc import Iterator

import pytest
from llm_stub import Signal

from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.completions import complete
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.wire import Sampled, TokenRequest, repeated
from prorl_celery.testing import ScriptedBackend

CALLS = 2000


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CALLS + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may have {hard} descriptors here, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("many_descriptors")
def test_all_calls_are_in_flight_at_once_and_none_fails(model_loop: ModelLoop, cancel: Signal) -> None:
    """Public report: a pool of a hundred connections makes calls wait in waves, and time out."""
    with ScriptedBackend(policy="toy:2,4", latency=15.0) as backend:
        endpoint = Endpoint(url=backend.url, model="scripted", tokenizer=str(backend.tokenizer_dir))
        ids = array("i", range(100, 164))
        request = TokenRequest(
            prompt_ids=ids,
            prompt_json=",".join(map(str, ids)),
            max_tokens=64,
            sampling=SamplingParams(),
            seed=1,
            request_id="r",
            vocab_size=5000,
        )

        async def all_at_once() -> list[Sampled]:
            session = model_loop.session
            return await asyncio.gather(*(repeated(lambda: complete(session, endpoint, request)) for _ in range(CALLS)))

        replies = model_loop.call(all_at_once, cancel=cancel, timeout=120.0)
        stats = backend.stats()
    assert len(replies) == CALLS
    assert all(reply.finish_reason == "stop" for reply in replies)
    assert (stats["calls"], stats["peak_live"], stats["aborts"]) == (CALLS, CALLS, 0)
