"""Against two real vLLM servers: a job that keeps its backend finds its prefix cached, and one that is cancelled or
out of time leaves nothing running.

Behind `make test-vllm`, with `VLLM_TEST_DIR`.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from set_cancel import SetCancel
from tiny_engine import CALL_SECONDS, LONG, TRIES, Engine, Talks, endpoint_of, under_way, wait_for

from prorl_celery.errors import Cancelled, StageTimeout
from prorl_celery.llm.calls.base import ToolCall
from prorl_celery.llm.loop import ModelLoop

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

JOBS, TURNS = 8, 8
OBSERVED = "word and number 1234 of the output\n" * 12
CALL = ToolCall(id="c0", name="bash", arguments={})
AT_ONCE_SECONDS = 1.0
"""How soon an engine is to have stopped, in the best of a few tries: a machine may be busy with other things."""


def cached_share(engines: tuple[Engine, Engine], talks: Talks, *, sticky: bool) -> float:
    """How much of all prompts' tokens came from the caches."""

    def job(number: int) -> tuple[int, int]:
        choose = random.Random(number)
        talk = talks(engines[number % 2], messages=[{"role": "user", "content": f"Job {number}."}], max_tokens=4)
        cached = asked = 0
        for _ in range(TURNS):
            if not sticky:
                talk.move(endpoint_of(choose.choice(engines)))
            reply = talk.sample()
            cached, asked = cached + (reply.cached_tokens or 0), asked + reply.prompt_tokens
            talk.observe([(CALL, OBSERVED)])
        return cached, asked

    with ThreadPoolExecutor(JOBS) as pool:
        counts = list(pool.map(job, range(JOBS)))
    return sum(cached for cached, _ in counts) / sum(asked for _, asked in counts)


def test_jobs_that_keep_their_backend_find_more_of_their_prompts_cached(
    engines: tuple[Engine, Engine], talks: Talks, capsys: pytest.CaptureFixture[str]
) -> None:
    sticky, at_random = (cached_share(engines, talks, sticky=how) for how in (True, False))
    with capsys.disabled():
        print(f"\nof all prompt tokens cached: {sticky:.1%} sticky, {at_random:.1%} with a random backend each turn")
    assert sticky > 0.65
    assert sticky > at_random + 0.08


def test_a_cancelled_call_has_left_the_engine_within_a_second(
    engine: Engine, model_loop: ModelLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    took = [cancelled(engine, model_loop)]
    while min(took) >= AT_ONCE_SECONDS and len(took) < TRIES:
        took.append(cancelled(engine, model_loop))
    with capsys.disabled():
        print(f"\nthe engine ran nothing {min(took) * 1000:.0f} ms after the cancel")
    assert min(took) < AT_ONCE_SECONDS


def cancelled(engine: Engine, model_loop: ModelLoop) -> float:
    """Seconds from the cancel of a call to an engine that runs nothing."""
    cancel = SetCancel()
    talks = Talks(model_loop, cancel)
    outcome = under_way(engine, lambda seed: talks(engine, max_tokens=LONG, seed=seed))
    assert engine.running == 1
    began = time.monotonic()
    cancel.set()
    wait_for(lambda: engine.running == 0)
    took = time.monotonic() - began
    assert isinstance(outcome.exception(CALL_SECONDS), Cancelled)
    cancel.close()
    return took


@pytest.mark.parametrize(("kind", "mode"), [("vllm", "tokens"), ("vllm_generate", "tokens"), ("vllm", "chat")])
def test_a_call_that_is_out_of_time_is_over_in_the_engine_too(
    engine: Engine, talks: Talks, kind: str, mode: str
) -> None:
    before, ended = engine.count("generation_tokens_total"), 0
    for seed in range(TRIES):  # a few end by themselves before that
        try:
            talk = talks(engine, kind, mode=mode, deadline=lambda: 1.0, max_tokens=LONG, seed=seed)
            ended += talk.sample().completion_tokens
        except StageTimeout:
            break
    else:
        pytest.fail("no call ran out of time")
    wait_for(lambda: engine.running == 0)
    assert engine.count("generation_tokens_total") - before < ended + LONG - 100
