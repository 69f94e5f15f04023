"""How a claim ends that did not go well: tried again, given back, or written down as the job's end."""

from __future__ import annotations

from prorl_celery.errors import CannotGoOn, KeeperLost, StageError, StoppedInDoubt, Stopping
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from tasks.beat import Held
from tasks.work import finish_reason_of, job_error


def write_end(store: JobStore, held: Held, failure: StageError) -> Message | None:
    """Write the failure down; return the message of what follows, None when the job has ended.

    A process that stops is not the job's fault: then it is given back, uncharged. Nor is it, for a few times, where a
    rollout cannot be gone on with, or lost its sandboxes with the keeper: then it starts over.

    Raises: `FenceLost`, `StoreUnavailable`; may be called again.
    """
    claim = held.claim
    lost = isinstance(failure, KeeperLost)
    if isinstance(failure, Stopping) or (lost and claim.stage == "init"):
        doubt = isinstance(failure, StoppedInDoubt) and claim.stage == "rollout"
        return store.hand_back(claim, sandboxes_lost=doubt, **held.times())
    error = job_error(failure, claim.stage)
    if lost or isinstance(failure, CannotGoOn):
        return store.restart(claim, error=error, keeper_lost=lost, **held.times())
    return store.fail(claim, error, finish_reason=finish_reason_of(failure), **held.times())
