"""The engine of the scripted backend: one generation, from a prompt's ids to sampled ids.

Given: prompt ids, a token limit, the request's seed and id.
Gives: a `Generation`, after as long as the latency model says; cut short when the request is aborted by its
id, and given up at once (by task cancellation) when the caller goes away.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.testing.scripted.conversation import Conversation
from prorl_celery.testing.scripted.failures import Failure, Failures
from prorl_celery.testing.scripted.latency import Latency
from prorl_celery.testing.scripted.ledger import CallRecord, Ledger
from prorl_celery.testing.scripted.policies import Policy
from prorl_celery.testing.scripted.tokens import LOGPROBS, ScriptedTokenizer, logprob_key


@dataclass(frozen=True, slots=True)
class Generation:
    """What was sampled. `sampled_ids` ends with the end-of-turn id exactly when `finish_reason` is `stop`."""

    text: str
    sampled_ids: list[int]
    logprob_keys: list[int]
    finish_reason: str
    cached_tokens: int

    @property
    def logprobs(self) -> list[float]:
        """One for each sampled id."""
        return [LOGPROBS[key] for key in self.logprob_keys]


@dataclass(slots=True)
class Call:
    """A generation call in progress."""

    request_id: str
    prompt_ids: array[int]
    seed: int | None
    failure: Failure | None
    aborted: asyncio.Event
    record: CallRecord
    outcome: str = "error"


class Engine:
    """Plays the policy. One event loop, no state of any conversation."""

    def __init__(
        self,
        tokenizer: ScriptedTokenizer,
        policy: Policy,
        latency: Latency,
        *,
        model_id: str,
        max_model_len: int,
        record: int = 0,
        journal: Path | None = None,
        seed: int = 0,
    ) -> None:
        self.tokenizer = tokenizer
        self.model_id = model_id
        self.max_model_len = max_model_len
        self.ledger = Ledger(record, journal)
        self.failures = Failures(seed)
        self.weight_version = "0"
        """What `/update_weight_version` said last."""
        self._policy = policy
        self._latency = latency
        self._live: dict[str, Call] = {}

    @contextmanager
    def call(
        self, request_id: str, route: str, prompt_ids: array[int], seed: int | None, cache_salt: str | None = None
    ) -> Iterator[Call]:
        """Count a call while it lasts; a caller that goes away in it counts as an abort."""
        record = CallRecord(request_id, route, seed, prompt_ids, time.monotonic(), cache_salt, self.weight_version)
        call = Call(request_id, prompt_ids, seed, self.failures.next(), asyncio.Event(), record)
        self.ledger.begin(record)
        self._live[request_id] = call
        try:
            yield call
        except asyncio.CancelledError:
            call.outcome = "disconnect"
            raise
        finally:
            if self._live.get(request_id) is call:
                del self._live[request_id]
            self.ledger.end(record, call.outcome)

    def abort(self, request_ids: list[str]) -> int:
        """End these calls with what they have; how many of them were live."""
        found = [self._live[request_id] for request_id in request_ids if request_id in self._live]
        for call in found:
            call.aborted.set()
        return len(found)

    async def generate(self, call: Call, max_tokens: int) -> Generation:
        """Sample the reply to the call's prompt: at most `max_tokens`, at most the context's room."""
        prompt, first = call.prompt_ids, len(call.prompt_ids)
        cached = self.ledger.prefixes.reuse(prompt, call.record.cache_salt)
        text = self._policy(Conversation(self.tokenizer, prompt), call.seed)
        sampled = [*self.tokenizer.encode_again(text), self.tokenizer.end_id]
        finish_reason = "stop"
        room = min(max_tokens, self.max_model_len - first)
        if len(sampled) > room:
            sampled, finish_reason = sampled[:room], "length"
        delay = self._latency(len(sampled))
        if call.failure is not None and call.failure.mode == "slow":
            delay += call.failure.seconds
        share = await _share_of(delay, call.aborted)
        if share < 1:
            sampled, finish_reason = sampled[: int(len(sampled) * share)], "abort"
        if finish_reason != "stop":
            text = self.tokenizer.decode(sampled, skip_special=True)
        keys = [logprob_key(token, position) for position, token in enumerate(sampled, first)]
        call.record.sampled_ids = sampled
        call.outcome = finish_reason
        self.ledger.sampled(first, len(sampled), cached)
        return Generation(text, sampled, keys, finish_reason, cached)


async def _share_of(delay: float, aborted: asyncio.Event) -> float:
    """Wait `delay` seconds; the share of them that passed before the abort, 1 when there was none."""
    if delay <= 0:
        return 1.0
    began = time.monotonic()
    try:
        async with asyncio.timeout(delay):
            await aborted.wait()
    except TimeoutError:
        return 1.0
    return min(0.999, (time.monotonic() - began) / delay)
