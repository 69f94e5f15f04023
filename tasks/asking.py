"""Other models that a stage asks: one call, at a backend that the job has for as long as the call takes.

A job has one backend at most. The agent's is given back when rollout is committed, so eval's call takes its place: it
comes from the same heap, counts there as any job does, and goes back when the call has ended; where the process dies
before, by what ends the claim. No second kind of slot, so nothing more that could leak.

A pause holds such a call as it holds a rollout's, if it is of the asked model or of all: whoever paused all models was
told that nothing is in flight. A trainer that pauses its policy by name lets the judge go on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from prorl_celery.errors import BackendError, BadInstance, ContextOverflow, StageTimeout, Unjudged
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.conversation import Conversation, open_conversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.request import ConversationRequest
from tasks.backends import Wanted
from tasks.gate import JobGate
from tasks.moving import MovingConversation
from tasks.watch import CallSignal
from tasks.work import Work


class Asking:
    """Asks models on behalf of one stage of a job; one at a time. `EvalContext.ask_model` says what is raised."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._one_at_a_time = threading.Lock()

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str | None,
        max_tokens: int,
        temperature: float,
        seed: int | None,
        timeout: float,
    ) -> str:
        """One reply's text."""
        name = model or self._work.process.settings.judge_model
        if not name:
            # Not "the only model served", as for an agent: that would be the policy, which must not judge itself.
            raise Unjudged("no model to ask: PRORL_JUDGE_MODEL names none")
        sampling = SamplingParams.model_validate(
            {"model": name, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        )
        with self._one_at_a_time:
            return self._ask(messages, sampling, timeout)

    def _ask(self, messages: Sequence[Mapping[str, Any]], sampling: SamplingParams, timeout: float) -> str:
        work = self._work
        clock, process = work.clock, work.process
        until = clock.worked_seconds + timeout

        def begin(endpoint: Endpoint, signal: CallSignal) -> Conversation:
            request = ConversationRequest(
                job_id=f"{work.job.job_id}-{work.claim.stage}",
                messages=messages,
                sampling=sampling,
                model_loop=process.models,
                cancel=signal,
                deadline=lambda: min(clock.remaining_seconds, until - clock.worked_seconds),
                gate=JobGate(process.gate, signal, clock, None, process.watch.look),
            )
            return open_conversation(endpoint, request)

        try:
            with MovingConversation(work, begin, Wanted(model=sampling.model)) as conversation:
                return conversation.sample().text
        except StageTimeout as error:
            work.signal.raise_if_set()
            if clock.remaining_seconds <= 0:
                raise
            raise BackendError(f"{sampling.model} did not answer within {timeout:g} s") from error
        except ContextOverflow as error:
            raise Unjudged(f"what {sampling.model} was asked is too long for it: {error}") from error
        except BadInstance as error:
            raise Unjudged(f"{sampling.model} cannot be asked so: {error}") from error
        finally:
            work.write(lambda: process.backends.release(work.job.job_id, work.claim.fence))
