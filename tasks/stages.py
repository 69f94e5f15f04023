"""The three Celery tasks, and what they share: claim, run the stage, publish what follows or write down the failure."""

from __future__ import annotations

import logging
import secrets
import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

from celery import Celery

from prorl_celery.app import task_name
from prorl_celery.errors import (
    FenceLost,
    HandlerError,
    InternalError,
    KeeperLost,
    LostWorker,
    SandboxError,
    StageError,
    StoppedInDoubt,
    Stopping,
    StoreError,
    StoreUnavailable,
    TooLarge,
    VersionSkew,
)
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import Stage
from tasks import eval as eval_stage
from tasks import init as init_stage
from tasks import rollout as rollout_stage
from tasks.acts import Acts
from tasks.beat import Held
from tasks.clock import StageClock
from tasks.ending import write_end
from tasks.insistence import insist
from tasks.process import StageProcess
from tasks.signals import JobSignal
from tasks.work import Work

log = logging.getLogger(__name__)

CLAIM_SECONDS = 30.0
"""How long a message waits for a Redis that is away; then it is lost, and the sweep publishes another."""
KEEPER_PAUSE_SECONDS = 1.0
KEEPER_SECONDS = 5.0
"""How long the keeper may take to say that it lives."""
UNKNOWN_STAGE_SECONDS = 60.0

RUN: dict[str, Callable[[Work], Message | None]] = {
    "init": init_stage.run,
    "rollout": rollout_stage.run,
    "eval": eval_stage.run,
}


def register(app: Celery, process: StageProcess) -> None:
    """Give the application the three tasks. All are known to every worker; a queue decides which arrive."""
    for stage in RUN:

        def task(job_id: str, fence: int, *_: Any, stage: str = stage) -> None:  # a later version may say more
            run_stage(process, stage, job_id, fence)

        app.task(task, name=task_name(stage), ignore_result=True, acks_late=True)


def on_unknown_task(process: StageProcess, name: str, task_id: str) -> None:
    """A message for a task that this version does not have, which Celery only logs: see what its job can do."""
    prefix, _, stage = name.rpartition(".")
    job_id, _, fence = task_id.rpartition("/")
    if f"{prefix}." != task_name("") or not job_id or not fence.isdecimal():
        log.error("message %s for the task %s is none of ours", task_id, name)
        return
    run_stage(process, stage, job_id, int(fence))


def run_stage(process: StageProcess, stage: str, job_id: str, fence: int) -> None:
    """Work off one message. Whatever happens to the job is in its record when this returns.

    When the store is away for long nothing can be recorded: then the lease lapses and the sweep tries the job again.
    """
    with process.warden.message():
        try:
            signal = JobSignal(process.warden.wake)
        except OSError as error:
            # Before the claim: the sweep publishes the message again, and here nothing would go better.
            log.error("%s of %s cannot begin: %s", stage, job_id, error)
            process.retire(f"it has no descriptors left: {error}")
            return
        try:
            asked_at = time.monotonic()
            claim = _claim(process, stage, job_id, fence)
            if claim is not None:  # else a copy of a message that was claimed before, or a job that has ended
                _work_off(process, claim, fence, signal, asked_at)
        finally:
            signal.close()


def _claim(process: StageProcess, stage: str, job_id: str, fence: int) -> Claim | None:
    op = secrets.token_hex(8)

    def step() -> Claim | None:
        node = process.settings.node
        return process.store.claim(cast(Stage, stage), job_id, fence, node=node, process=process.id, op=op)

    try:
        return insist(step, process.pause, seconds=CLAIM_SECONDS)
    except StoreUnavailable as error:
        log.warning("%s of %s could not be claimed: %s", stage, job_id, error)
        return None


def _work_off(process: StageProcess, claim: Claim, published: int, signal: JobSignal, asked_at: float) -> None:
    limit = getattr(claim.request.timeouts, claim.stage, UNKNOWN_STAGE_SECONDS)
    clock = StageClock(limit, claim.stage, signal, process.deadlines, claim.spent_s)
    held = Held(claim, signal, clock, Acts(claim.stage))
    process.beat.hold(held, asked_at)
    try:
        with process.warden.slot(held), ExitStack() as ending:
            work = Work(process, held, published, ending)
            message = _run(work)
            work.follows = "nothing" if message is None else message.stage
            if message is not None:
                process.publish(message)
    except FenceLost:
        log.info("%s of %s was fenced out", claim.stage, claim.job_id)
    except LostWorker as error:
        # What was lost was at work for several jobs: whose fault it was the sweep judges, when the lease lapses.
        log.error("%s of %s: %s", claim.stage, claim.job_id, error)
    except StoreUnavailable as error:
        log.warning("%s of %s: %s", claim.stage, claim.job_id, error)
    finally:
        clock.stop()
        process.beat.release(held)


def _run(work: Work) -> Message | None:
    """Run the stage; turn its failure into what the job's record says."""
    stage, claim, store = work.claim.stage, work.claim, work.process.store
    try:
        work.signal.raise_if_set()
        if claim.suspect and work.process.stage != "solo":
            return work.end(lambda: store.hand_back(claim, waited_s=0.0))  # to the queue of its kind
        if stage not in RUN:
            raise VersionSkew(f"this worker does not know the stage {stage!r}; it is of another version")
        return RUN[stage](work)
    except FenceLost:
        raise
    except StoreUnavailable as error:
        # Amid the stage: what is written down stays, and another claim goes on behind it.
        log.warning("%s of %s is given back: %s", stage, claim.job_id, error)
        return work.end(lambda: store.hand_back(claim, **work.held.times()))
    except StageError as error:
        failure = error
    except TooLarge as error:  # of what the handler or its agent made
        failure = HandlerError(str(error))
    except StoreError as error:
        failure = InternalError(str(error))
    except Exception as error:
        # A bug of ours must end this job with its name on it, not this slot with the job for ever claimed.
        log.exception("%s of %s", stage, claim.job_id)
        failure = InternalError(f"{type(error).__name__}: {error}")
    if work.clock.remaining_seconds <= 0:
        work.clock.overran()  # a wait of the stage's own ended by the same clock, a moment before the deadline was told
    # A tool or a call that was interrupted by the signal may report its own trouble: the signal's reason is the cause.
    reason = work.signal.reason
    if isinstance(reason, StageError) and not (isinstance(reason, Stopping) and isinstance(failure, StoppedInDoubt)):
        failure = reason
    if isinstance(failure, LostWorker):
        raise failure
    if isinstance(failure, SandboxError) and work.handler.needs_sandbox(work.job) and _keeper_is_gone(work.process):
        failure = KeeperLost(f"the keeper is gone, and the sandbox with it: {failure}")
    if isinstance(failure, KeeperLost) and not work.signal.is_set:
        # The node lost its keeper, which is no fault of the job. The supervisor starts another within a second or so;
        # the pause keeps a job from going round in the meantime.
        work.clock.stop()
        _pause(work.signal, KEEPER_PAUSE_SECONDS)
    return work.end(lambda: write_end(store, work.held, failure))


def _keeper_is_gone(process: StageProcess) -> bool:
    """Whether the keeper of this process's sandboxes has ended: then their ends are no fault of the jobs in them."""
    try:
        return bool(process.keeper.status(timeout=KEEPER_SECONDS)["boot"] != process.boot)
    except KeeperLost:
        return True


def _pause(signal: JobSignal, seconds: float) -> None:
    """Wait, but not when the job must stop."""
    poll = select.poll()
    poll.register(signal.fileno(), select.POLLIN)
    poll.poll(seconds * 1000)
