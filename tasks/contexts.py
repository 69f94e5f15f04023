"""What a handler is given in each stage (`prorl_celery.handlers.base` says what each part means)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prorl_celery.agents.loop import run_agent
from prorl_celery.errors import BadInstance, ChildLost
from prorl_celery.handlers.base import MAIN, SandboxRequest
from prorl_celery.jobs.models import FinishReason
from prorl_celery.jobs.turns import Turn
from prorl_celery.llm.conversation import Conversation, open_conversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.sandbox.base import Sandbox
from prorl_celery.search.opening import open_search
from prorl_celery.tools.search import SearchTool
from prorl_celery.tools.toolbox import Toolbox
from tasks.asking import Asking
from tasks.backends import Wanted
from tasks.doubt import DOUBT_SECONDS
from tasks.gate import JobGate
from tasks.moving import MovingConversation
from tasks.replay import RolloutLog
from tasks.sandboxes import StageSandboxes
from tasks.watch import CallSignal
from tasks.work import Work


class Context:
    """Common to the stages."""

    def __init__(self, work: Work, sandboxes: StageSandboxes) -> None:
        self._work = work
        self.sandboxes = sandboxes
        self.job = work.job
        self.attempt = work.claim.attempt
        self.instance: Mapping[str, Any] = work.job.instance.data()
        self.cancel = work.signal

    @property
    def sandbox(self) -> Sandbox:
        return self.sandboxes[MAIN]

    def fresh_sandbox(self, request: SandboxRequest | None = None) -> Sandbox:
        return self.sandboxes.fresh(request)

    def remaining_seconds(self) -> float:
        return self._work.clock.remaining_seconds

    def in_child(self, function: Callable[[Any], Any], argument: Any, *, timeout: float) -> Any:
        with self._work.act(f"in_child {function.__module__}:{function.__qualname__}"):
            try:
                return self._work.process.nursery.call(
                    function, argument, timeout=min(timeout, self.remaining_seconds()), cancel=self.cancel
                )
            except ChildLost:
                self._work.signal.raise_if_stopping_within(DOUBT_SECONDS)
                raise


class InitStage(Context):
    """Of init."""


class RolloutStage(Context):
    """Of rollout: what init returned, and the model."""

    def __init__(self, work: Work, sandboxes: StageSandboxes, init: Any) -> None:
        super().__init__(work, sandboxes)
        self.init = init
        self.finish_reason: FinishReason = "stop"
        self.going_on = work.claim.going_on
        self._log = RolloutLog(work)

    def run_agent(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[str] | None = None, sandbox: str = MAIN
    ) -> dict[str, Any]:
        if not all(isinstance(message, Mapping) for message in messages):  # a text is a sequence too
            raise TypeError('run_agent takes a list of messages, each {"role": ..., "content": ...}')
        run = self._log.next_run()
        outcome = run.outcome
        if outcome is None:
            toolbox = self._toolbox(tools, sandbox)
            with self._conversation(messages, toolbox, run.logged) as conversation:
                outcome = run_agent(
                    conversation,
                    toolbox,
                    max_turns=self.job.agent.max_turns,
                    log=run,
                    cancel=self.cancel,
                    logged=run.logged,
                )
        self.finish_reason = outcome.finish_reason
        return {"finish_reason": outcome.finish_reason, "answer": outcome.answer, "turns": outcome.turns}

    def _toolbox(self, tools: Sequence[str] | None, name: str) -> Toolbox:
        names = self.job.agent.tools
        if names is None:
            names = tuple(self._work.handler.default_tools if tools is None else tools)
        # Without a main sandbox there may be none at all, and the tools may need none.
        sandbox = None if name == MAIN and name not in self.sandboxes else self.sandboxes[name]
        settings = self._work.process.settings
        try:
            return Toolbox(
                names,
                sandbox=sandbox,
                settings=settings,
                cancel=self.cancel,
                act=self._work.act,
                taken_over=self.going_on,
                search=open_search(settings, self._work.process.models) if SearchTool.name in names else None,
            )
        except ValueError as error:
            raise BadInstance(str(error), field="agent.tools") from error

    def _conversation(
        self, messages: Sequence[Mapping[str, Any]], toolbox: Toolbox, logged: Sequence[Turn]
    ) -> MovingConversation:
        process = self._work.process

        def begin(endpoint: Endpoint, signal: CallSignal) -> Conversation:
            # Not before: a job that waits for a backend must not hold what it does not need yet.
            self.sandboxes.start_ahead()
            request = ConversationRequest(
                job_id=self.job.job_id,
                messages=messages,
                sampling=self.job.sampling_params,
                model_loop=process.models,
                cancel=signal,
                deadline=self.remaining_seconds,
                tools=toolbox.schemas,
                max_context_tokens=self.job.agent.max_context_tokens,
                gate=JobGate(process.gate, signal, self._work.clock, self.job.policy_version, process.watch.look),
            )
            return open_conversation(endpoint, request, mode=logged[0].mode if logged else self.job.llm.mode)

        return MovingConversation(self._work, begin, Wanted.by_agent(self.job, logged))


class EvalStage(Context):
    """Of eval: what the stages before returned."""

    def __init__(self, work: Work, sandboxes: StageSandboxes, init: Any, rollout: Any) -> None:
        super().__init__(work, sandboxes)
        self.init = init
        self.rollout = rollout
        self._asking = Asking(work)

    def ask_model(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int | None = None,
        timeout: float,
    ) -> str:
        return self._asking.ask(
            messages, model=model, max_tokens=max_tokens, temperature=temperature, seed=seed, timeout=timeout
        )

    def turns(self) -> list[Turn]:
        return self._work.process.store.turns(self.job.job_id)
