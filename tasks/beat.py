"""The heartbeat of a stage process: a thread that does nothing else, one command for all the process's jobs.

A claim that the store no longer knows is fenced out: its stage is told to stop and writes nothing more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from prorl_celery.errors import Cancelled, FenceLost, StoreUnavailable
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.store import JobStore
from tasks.signals import JobSignal

log = logging.getLogger(__name__)


class Held:
    """A claim this process holds, and the signal that stops its stage."""

    def __init__(self, claim: Claim, signal: JobSignal) -> None:
        self.claim = claim
        self.signal = signal


class Beat:
    """Keeps the leases of the claims in `held`; `also` is called at each beat (the node's record)."""

    def __init__(self, store: JobStore, every_seconds: float, also: Callable[[int], None]) -> None:
        self._store = store
        self._every = every_seconds
        self._also = also
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def hold(self, held: Held) -> None:
        """Keep the claim's lease. An earlier claim of the job that is still at work here has been fenced out."""
        with self._lock:
            earlier = self._held.get(held.claim.job_id)
            self._held[held.claim.job_id] = held
        if earlier is not None:
            earlier.signal.set(FenceLost("another claim owns the job now", job_id=held.claim.job_id))

    def release(self, held: Held) -> None:
        with self._lock:
            if self._held.get(held.claim.job_id) is held:
                del self._held[held.claim.job_id]

    def cancel(self, job_id: str) -> None:
        """Called by the listener when somebody cancels a job, ours or not."""
        with self._lock:
            held = self._held.get(job_id)
        if held is not None:
            held.signal.set(Cancelled("the job was cancelled", job_id=job_id))

    def holding(self) -> list[Held]:
        """What this process holds now."""
        with self._lock:
            return list(self._held.values())

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self._beat()
            except StoreUnavailable as error:
                # The sweep is as blind as we are while Redis is away; leases are renewed when it is back, and those
                # that lapsed are told at the next beat.
                log.warning("heartbeat missed: %s", error)
            except Exception:
                # Without this thread the process would go on claiming jobs and lose every one of them.
                log.exception("heartbeat")

    def _beat(self) -> None:
        held = {h.claim.job_id: h for h in self.holding()}
        if held:
            beat = self._store.heartbeat([(h.claim.job_id, h.claim.fence) for h in held.values()])
            for job_id in beat.lost:
                held[job_id].signal.set(FenceLost("another claim owns the job now", job_id=job_id))
            for job_id in beat.cancelled:
                held[job_id].signal.set(Cancelled("the job was cancelled", job_id=job_id))
        self._also(len(held))
