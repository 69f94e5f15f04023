"""The three Celery tasks, and what they share: claim, run the stage, publish what follows or write down the failure."""

from __future__ import annotations

import logging
import secrets
import select
from collections.abc import Callable
from contextlib import ExitStack

from celery import Celery

from prorl_celery.app import task_name
from prorl_celery.errors import (
    FenceLost,
    HandlerError,
    InternalError,
    KeeperLost,
    StageError,
    Stopping,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import Stage
from tasks import eval as eval_stage
from tasks import init as init_stage
from tasks import rollout as rollout_stage
from tasks.acts import Acts
from tasks.beat import Held
from tasks.clock import StageClock
from tasks.process import StageProcess
from tasks.signals import JobSignal
from tasks.work import Work, finish_reason_of, job_error

log = logging.getLogger(__name__)

KEEPER_PAUSE_SECONDS = 1.0

RUN: dict[Stage, Callable[[Work], Message | None]] = {
    "init": init_stage.run,
    "rollout": rollout_stage.run,
    "eval": eval_stage.run,
}


def register(app: Celery, process: StageProcess) -> None:
    """Give the application the three tasks. All are known to every worker; a queue decides which arrive."""
    for stage in RUN:

        def task(job_id: str, fence: int, stage: Stage = stage) -> None:
            run_stage(process, stage, job_id, fence)

        app.task(task, name=task_name(stage), ignore_result=True, acks_late=True)


def run_stage(process: StageProcess, stage: Stage, job_id: str, fence: int) -> None:
    """Work off one message. Whatever happens to the job is in its record when this returns.

    When the store is away nothing can be recorded: then the lease lapses and the sweep tries the job again.
    """
    try:
        claim = process.store.claim(
            stage, job_id, fence, node=process.settings.node, process=process.id, op=secrets.token_hex(8)
        )
        if claim is None:
            return  # a copy of a message that was claimed before, or a job that has ended
    except StoreUnavailable as error:
        log.warning("%s of %s could not be claimed: %s", stage, job_id, error)
        return
    signal = JobSignal()
    clock = StageClock(getattr(claim.request.timeouts, stage), stage, signal, process.deadlines)
    held = Held(claim, signal)
    process.beat.hold(held)
    if process.stopping:
        signal.process_is_stopping()
    try:
        with ExitStack() as ending:
            work = Work(process, claim, clock, signal, ending, Acts(stage))
            message = _run(work, stage)
            work.ended = message is None
            if message is not None:
                process.publisher.publish(message)
    except FenceLost:
        log.info("%s of %s was fenced out", stage, job_id)
    except StoreUnavailable as error:
        log.warning("%s of %s: %s", stage, job_id, error)
    finally:
        clock.stop()
        process.beat.release(held)
        signal.close()


def _run(work: Work, stage: Stage) -> Message | None:
    """Run the stage; turn its failure into what the job's record says."""
    try:
        work.signal.raise_if_set()
        return RUN[stage](work)
    except (FenceLost, StoreUnavailable):
        raise
    except StageError as error:
        failure = error
    except TooLarge as error:  # of what the handler or its agent made
        failure = HandlerError(str(error))
    except StoreError as error:
        failure = InternalError(str(error))
    except Exception as error:
        # A bug of ours must end this job with its name on it, not this slot with the job for ever claimed.
        log.exception("%s of %s", stage, work.job.job_id)
        failure = InternalError(f"{type(error).__name__}: {error}")
    if work.clock.remaining_seconds <= 0:
        work.clock.overran()  # a wait of the stage's own ended by the same clock, a moment before the deadline was told
    # A tool or a call that was interrupted by the signal may report its own trouble: the signal's reason is the cause.
    if work.signal.reason is not None and isinstance(work.signal.reason, StageError):
        failure = work.signal.reason
    work.clock.stop()
    if isinstance(failure, KeeperLost) and not work.signal.is_set:
        # The node lost its keeper, which is no fault of the job. The supervisor starts another within a second or so;
        # the pause keeps a job from going round in the meantime.
        _pause(work.signal, KEEPER_PAUSE_SECONDS)
    if isinstance(failure, Stopping | KeeperLost):
        return work.process.store.hand_back(work.claim, **work.times())
    return work.process.store.fail(
        work.claim, job_error(failure, stage), finish_reason=finish_reason_of(failure), **work.times()
    )


def _pause(signal: JobSignal, seconds: float) -> None:
    """Wait, but not when the job must stop."""
    poll = select.poll()
    poll.register(signal.fileno(), select.POLLIN)
    poll.poll(seconds * 1000)
