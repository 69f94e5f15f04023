"""Against a real vLLM: weights that change under a job. Each token has the version of the weights that sampled it and
their log-probability, and nothing that was cached under other weights is used.

Behind `make test-vllm`, with `VLLM_TEST_DIR`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_engine import CALL_SECONDS, LONG, SAME, SOME_TOKENS, Engine, StepGate, Talks, under_way, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

PROMPT = [5 + i % 900 for i in range(200)]
GREEDY = {"max_tokens": 4, "temperature": 0}


def scores_of(engine: Engine, ids: list[int], salt: str) -> tuple[int, list[float]]:
    """How much of a prompt was cached, and the log-probabilities of what follows it."""
    reply = engine.complete(ids, cache_salt=salt, **GREEDY)
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached, reply["choices"][0]["logprobs"]["token_logprobs"]


def test_terse_weights_give_other_log_probs_and_a_salt_of_their_own_no_stale_prefix(
    engine: Engine, terse_weights: Path
) -> None:
    old = engine.rescored(PROMPT)
    _, before = scores_of(engine, PROMPT, "v7")
    cached, again = scores_of(engine, PROMPT, "v7")
    assert cached > 0
    assert again == pytest.approx(before, abs=SAME)
    with engine.with_weights(terse_weights):
        new = engine.rescored(PROMPT)
        assert max(abs(one - two) for one, two in zip(old, new, strict=True)) > 0.05
        stale, mixed = scores_of(engine, PROMPT, "v7")
        assert stale > 0  # this engine keeps its cache: without a salt the old weights' would be used
        fresh, true = scores_of(engine, PROMPT, "v8")
        assert fresh == 0
        assert mixed != pytest.approx(true, abs=SAME)
        engine.post("/reset_prefix_cache")
        emptied, reset = scores_of(engine, PROMPT, "v7")
        assert emptied == 0
        assert reset == pytest.approx(true, abs=SAME)
    assert engine.rescored(PROMPT) == pytest.approx(old, abs=SAME)


@pytest.mark.parametrize("kind", ["vllm", "vllm_generate"])
def test_a_call_given_up_for_new_weights_keeps_its_tokens_and_the_turn_goes_on_under_the_new(
    engine: Engine, talks: Talks, terse_weights: Path, kind: str
) -> None:
    gate = StepGate(7)
    engine.post("/update_weight_version", new_version="7")
    reply_of = under_way(engine, lambda seed: talks(engine, kind, gate=gate, max_tokens=LONG, seed=seed))
    gate.opened.clear()
    passage = gate.passage
    assert passage is not None
    passage.interrupt("abort")
    wait_for(lambda: gate.passage is None and engine.running == 0)
    with engine.with_weights(terse_weights):
        engine.post("/update_weight_version", new_version="8")
        gate.version = 8
        gate.opened.set()
        reply = reply_of.result(CALL_SECONDS)
        count = len(reply.sampled_ids)
        assert len(reply.logprobs) == len(reply.versions) == reply.completion_tokens
        old = list(reply.versions).count(7)
        assert SOME_TOKENS < old < count <= LONG
        assert list(reply.versions) == [7] * old + [8] * (count - old)
        ids, at = [*reply.delta_ids, *reply.sampled_ids], len(reply.delta_ids)
        now = engine.rescored(ids)[at - 1 :]
        assert list(reply.logprobs[old:]) == pytest.approx(now[old:], abs=SAME)
    then = engine.rescored(ids)[at - 1 :]
    assert list(reply.logprobs[:old]) == pytest.approx(then[:old], abs=SAME)
    assert list(reply.logprobs[old:]) != pytest.approx(then[old:], abs=SAME)


def test_a_call_frozen_over_an_update_tells_the_version_of_each_of_its_tokens(engine: Engine, talks: Talks) -> None:
    engine.post("/update_weight_version", new_version="12")
    gate = StepGate(12)
    reply_of = under_way(engine, lambda seed: talks(engine, "vllm_generate", gate=gate, max_tokens=LONG, seed=seed))
    with engine.paused("keep"):
        engine.post("/update_weight_version", new_version="13")
        assert not reply_of.done()
    versions = list(reply_of.result(CALL_SECONDS).versions)
    old = versions.count(12)
    assert SOME_TOKENS < old < len(versions)
    assert versions == [12] * old + [13] * (len(versions) - old)


def test_an_engine_that_gives_up_its_calls_by_itself_is_asked_to_go_on(engine: Engine, talks: Talks) -> None:
    gate = StepGate(0)
    reply_of = under_way(engine, lambda seed: talks(engine, gate=gate, max_tokens=LONG, seed=seed))
    before = gate.calls
    with engine.paused("abort"):
        wait_for(lambda: gate.calls == before + 1)
        assert not reply_of.done()
    reply = reply_of.result(CALL_SECONDS)
    assert reply.finish_reason in {"length", "stop"}
    assert SOME_TOKENS < len(reply.sampled_ids) == reply.completion_tokens <= LONG
    ids, at = [*reply.delta_ids, *reply.sampled_ids], len(reply.delta_ids)
    assert list(reply.logprobs) == pytest.approx(engine.rescored(ids)[at - 1 :], abs=SAME)
