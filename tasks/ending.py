"""How a claim ends that did not go well: tried again, given back, or written down as the job's end."""

from __future__ import annotations

from prorl_celery.errors import CannotGoOn, KeeperLost, StageError, StoppedInDoubt, Stopping
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from tasks.beat import Held
from tasks.work import finish_reason_of, job_error


def write_end(store: JobStore, held: Held, failure: StageError) -> Message | None:
    """Write the failure down; return the message of what follows, None when the job has ended.

    Neither a process that stops nor a keeper that is gone is the job's fault: then it is given back, uncharged. Nor is
    it, for a few times, where a rollout cannot be gone on with: then it starts over.

    Raises: `FenceLost`, `StoreUnavailable`; may be called again.
    """
    claim = held.claim
    if isinstance(failure, Stopping | KeeperLost):
        doubt = isinstance(failure, StoppedInDoubt) and claim.stage == "rollout"
        lost = isinstance(failure, KeeperLost) or doubt
        return store.hand_back(claim, sandboxes_lost=lost, **held.times())
    if isinstance(failure, CannotGoOn):
        return store.restart(claim, error=job_error(failure, claim.stage), **held.times())
    return store.fail(claim, job_error(failure, claim.stage), finish_reason=finish_reason_of(failure), **held.times())
