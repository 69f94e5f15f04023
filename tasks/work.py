"""One claim being worked on: what the three stages share, from the handler's call to the error a job ends with."""

from __future__ import annotations

import errno
import json
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, get_args

from prorl_celery.depth import check_depth
from prorl_celery.errors import EvalError, FenceLost, HandlerError, NodeExhausted, StageError, Stopping, StoreError
from prorl_celery.handlers.base import Handler, SandboxRequest
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import STAGES, ErrorKind, FinishReason, JobError, JobRequest, Stage
from prorl_celery.sandbox.base import SandboxSpec
from tasks.acts import Acts
from tasks.beat import Held, Times
from tasks.clock import StageClock
from tasks.insistence import insist
from tasks.signals import JobSignal

if TYPE_CHECKING:
    from tasks.process import StageProcess

DAY_SECONDS = 24 * 3600.0
TRACE_CHARACTERS = 2000
MESSAGE_CHARACTERS = 8000
"""Longest message of a job's error: an exception may quote all it was given, and every status carries it."""

C = TypeVar("C")
T = TypeVar("T")

Handles = dict[str, dict[str, Any]]
"""Live sandboxes by name, as JSON."""


class InitOutput(TypedDict):
    """What init commits: the sandboxes that live on, and what the handler returned."""

    sandboxes: Handles
    handler: Any


class RolloutOutput(TypedDict):
    """What rollout commits: the sandboxes that live on, what the handler returned, how the agent ended, what goes into
    the result.
    """

    sandboxes: Handles
    fence: int
    """Of the claim that committed this."""
    handler: Any
    finish_reason: FinishReason
    artifacts: dict[str, Any]


@dataclass(slots=True)
class Work:
    """A claim, its clock, its signal, and the process it runs in."""

    process: StageProcess
    held: Held
    published: int
    """The fence under which the claimed message was published."""
    ending: ExitStack
    """What is done when the job has gone on: it must not wait for a sandbox to end."""
    follows: Stage | Literal["nothing", "unknown"] = "unknown"
    """The stage that the job is in when this claim is over; not known while it is not, nor when it was lost."""

    @property
    def claim(self) -> Claim:
        return self.held.claim

    @property
    def clock(self) -> StageClock:
        return self.held.clock

    @property
    def signal(self) -> JobSignal:
        return self.held.signal

    @property
    def acts(self) -> Acts:
        return self.held.acts

    @property
    def job(self) -> JobRequest:
        return self.claim.request

    @property
    def handler(self) -> Handler:
        """Raises `BadInstance` where this node has no handler for the job."""
        return self.process.handlers.find(self.job.instance.data_source)

    @property
    def init(self) -> InitOutput:
        """What init committed; for the stages behind it."""
        return cast(InitOutput, self.claim.init)

    @property
    def rollout(self) -> RolloutOutput:
        """What rollout committed; for eval."""
        return cast(RolloutOutput, self.claim.rollout)

    def act(self, name: str, *, waiting: bool = False) -> AbstractContextManager[None]:
        """Be at this while the block runs: "model call http://..", "tool bash", "sandbox start", "in_child mod:fn".

        `waiting` is for what is nobody's fault (no backend, a pause, no place on the node): it is never a stall.
        """
        return self.acts.act(name, waiting=waiting)

    def times(self) -> Times:
        """The clock's reading as commit, finish and fail take it."""
        return self.held.times()

    def write(self, step: Callable[[], T]) -> T:
        """What a step of the store's gives that does not end the claim, such as a turn for the log; done again while
        Redis is away.

        Raises: what the step raises, what the job's signal raises meanwhile.
        """

        def pause(seconds: float) -> bool:
            self.signal.wait(seconds)
            return True

        with self.act("waiting for Redis", waiting=True):
            return insist(step, pause)

    def end(self, step: Callable[[], T]) -> T:
        """What a step of the store's gives that ends the claim: commit, finish, fail, hand_back. The stage is over, so
        neither its deadline nor the wedge's grace counts any more; done again while Redis is away.

        Raises: what the step raises; `FenceLost` when the claim is lost meanwhile.
        """
        self.clock.stop()
        self.held.back = True

        def pause(seconds: float) -> bool:
            if isinstance(self.signal.reason, FenceLost):
                raise self.signal.reason
            return self.process.pause(seconds)

        with self.act("waiting for Redis", waiting=True):
            return insist(step, pause)

    def sandbox_spec(self, request: SandboxRequest, purpose: str) -> SandboxSpec:
        """What the keeper is asked for when the handler asks for this."""
        settings = self.process.settings
        limits = self.job.timeouts
        return SandboxSpec(
            job_id=self.job.job_id,
            attempt=self.claim.attempt,
            fence=self.claim.fence,
            purpose=purpose,
            kind=settings.sandbox,
            image=request.image,
            network=request.network,
            binds=request.binds,
            fakeroot=request.fakeroot,
            kernel=request.kernel,
            memory_bytes=request.memory_bytes or settings.sandbox_memory_bytes,
            disk_bytes=request.disk_bytes or settings.sandbox_disk_bytes,
            processes=settings.sandbox_processes,
            cpus=settings.sandbox_cpus,
            lifetime_seconds=limits.init + limits.rollout + limits.eval + DAY_SECONDS,
        )


EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


def asking_handler(ask: Callable[[], T], stage: Stage) -> T:
    """What the handler's code gives.

    Raises: `StageError`s and `StoreError`s as they are; `NodeExhausted` where the machine has no more of something;
    what else it raises as `EvalError` (stage eval) or `HandlerError`, with the end of its trace.
    """
    process = os.getpid()
    try:
        return ask()
    except (StageError, StoreError):
        raise
    except MemoryError as error:
        raise NodeExhausted(f"the handler's {stage} ran out of memory") from error
    except BaseException as error:  # `sys.exit` and asyncio's cancellation too: they would take the slot along
        kind: type[StageError] = EvalError if stage == "eval" else HandlerError
        trace = "".join(traceback.format_exception(error))[-TRACE_CHARACTERS:]
        said = str(error)[:TRACE_CHARACTERS]
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            kind = NodeExhausted
        raise kind(f"the handler's {stage} raised {type(error).__name__}: {said}\n{trace}") from error
    finally:
        if os.getpid() != process:
            os._exit(1)  # a copy of us, which the handler has forked and let come back: it must not go on as this job


def call_handler(work: Work, method: Callable[[C], Any], ctx: C, stage: Stage) -> Any:
    """Call a handler's method for a stage; return what it returned as plain JSON.

    Raises: as `asking_handler`; `HandlerError` for what is not JSON; what the job's signal raises, even where the
    handler did not heed it.
    """

    def ask() -> Any:
        with work.act("handler"), work.held.handler.running():
            return method(ctx)

    value = asking_handler(ask, stage)
    if work.signal.raised is not None:
        raise work.signal.raised  # the handler did not let it through: what it made of that is no score
    reason = work.signal.reason
    if reason is not None and not isinstance(reason, Stopping):
        raise reason  # done too late; before the process ends is not too late
    try:
        plain = json.loads(json.dumps(value, allow_nan=False))
        check_depth(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise HandlerError(f"what the handler's {stage} returned is not JSON: {error}") from error
    return plain


def job_error(error: StageError, stage: str) -> JobError:
    """The error as the job's record and the API tell it: of a known kind and stage, as text that JSON can hold."""
    message = (str(error) or type(error).__name__)[:MESSAGE_CHARACTERS]
    return JobError.model_validate(
        {
            "kind": error.kind if error.kind in get_args(ErrorKind) else HandlerError.kind,
            "stage": next((name for name in (error.stage, stage) if name in STAGES), None),
            "message": message.encode("utf-8", "replace").decode(),
            "retryable": error.retryable,
        }
    )


def finish_reason_of(error: StageError) -> FinishReason:
    """The result's `finish_reason` for a job that ends by this error."""
    reasons: dict[str, FinishReason] = {reason: reason for reason in ("timeout", "cancelled", "context_overflow")}
    return reasons.get(error.kind, "error")
