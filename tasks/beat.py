"""The heartbeat of a stage process: a thread that does nothing else, one command for all the process's jobs.

A claim that the store no longer knows is fenced out: its stage is told to stop and writes nothing more. What a job has
been at for too long is noted in its record.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from prorl_celery.errors import Cancelled, FenceLost, StoreUnavailable
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.store import JobStore
from tasks.acts import Acts
from tasks.breaking import Breakable
from tasks.clock import StageClock
from tasks.signals import JobSignal

log = logging.getLogger(__name__)


WAIT_SECONDS = 0.1
"""The store is told of a wait when it has grown by so much."""


class Times(TypedDict):
    """Seconds worked and waited in a stage."""

    worked_s: float
    waited_s: float


@dataclass(slots=True, eq=False)
class Held:
    """A claim this process holds, the signal that stops its stage, and what the stage is doing."""

    claim: Claim
    signal: JobSignal
    clock: StageClock
    acts: Acts
    handler: Breakable = field(default_factory=Breakable)
    back: bool = False
    """Whether the stage is out of the handler's code and of its waits: what is left to do ends by itself."""
    stalled: bool = False
    """Whether its record says that it does not move."""
    waited_s: float = 0.0
    """What it had waited when the store was last told."""
    wedged: bool = False
    """Whether the stage did not stop when it was told to: its slot is given up, and it has nothing more to say."""

    def times(self) -> Times:
        """The clock's reading as commit, finish and fail take it."""
        return {"worked_s": self.clock.worked_seconds, "waited_s": self.clock.waited_seconds}

    def stalled_at(self, limit_seconds: float) -> dict[str, object] | None:
        """What the stage has been at for longer than this, as the job's record tells it; None where it is well."""
        now = self.acts.now()
        if now.act.waiting or not self.clock.running or now.seconds < limit_seconds:
            return None
        return {"act": now.act.name, "thread": now.act.thread, "since_s": round(now.seconds, 3)}


class Beat:
    """Keeps the leases of the claims in `held`. `first` is called at each beat before Redis is (the supervisor hears of
    us whether that answers or not), `also` after it, with the number of jobs.
    """

    def __init__(
        self,
        store: JobStore,
        every_seconds: float,
        stall_seconds: float,
        *,
        first: Callable[[], None] = lambda: None,
        also: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._every = every_seconds
        self._stall = stall_seconds
        self._first = first
        self._also = also
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._stopping = False
        self._wake = threading.Event()
        self._missed_at = 0.0
        """When something was told last that may have been for a claim that was not held yet."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def hold(self, held: Held, asked_at: float | None = None) -> None:
        """Keep the claim's lease. An earlier claim of the job that is still at work here has been fenced out.

        `asked_at`: when the claim was asked for, by the monotonic clock. What was told since then may be for it.
        """
        with self._lock:
            earlier = self._held.get(held.claim.job_id)
            self._held[held.claim.job_id] = held
        if earlier is not None:
            earlier.signal.set(FenceLost("another claim owns the job now", job_id=held.claim.job_id))
        if asked_at is not None and self._missed_at >= asked_at:
            self._wake.set()

    def release(self, held: Held) -> None:
        with self._lock:
            if self._held.get(held.claim.job_id) is held:
                del self._held[held.claim.job_id]

    def cancel(self, job_id: str) -> None:
        """Called by the listener when somebody cancels a job, ours or not."""
        with self._lock:
            held = self._held.get(job_id)
        if held is None:
            self._missed_at = time.monotonic()
        else:
            held.signal.set(Cancelled("the job was cancelled", job_id=job_id))

    def now(self) -> None:
        """Beat at once: jobs were revoked, ours perhaps among them."""
        self._missed_at = time.monotonic()
        self._wake.set()

    def holding(self) -> list[Held]:
        """What this process holds now."""
        with self._lock:
            return list(self._held.values())

    def _run(self) -> None:
        while True:
            self._wake.wait(self._every)
            self._wake.clear()
            if self._stopping:
                return
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
        self._first()
        held = {h.claim.job_id: h for h in self.holding()}
        if held:
            waited_s = {job_id: h.clock.waited_seconds for job_id, h in held.items()}
            news = {job_id: s for job_id, s in waited_s.items() if s >= held[job_id].waited_s + WAIT_SECONDS}
            beat = self._store.heartbeat([(h.claim.job_id, h.claim.fence) for h in held.values()], news)
            for job_id, seconds in news.items():
                held[job_id].waited_s = seconds
            for job_id in beat.lost:
                held[job_id].signal.set(FenceLost("another claim owns the job now", job_id=job_id))
            for job_id in beat.cancelled:
                held[job_id].signal.set(Cancelled("the job was cancelled", job_id=job_id))
            self._note_stalls(held.values())
        self._also(len(held))

    def _note_stalls(self, held: Iterable[Held]) -> None:
        for one in held:
            stall = one.stalled_at(self._stall)
            if stall is not None or one.stalled:
                self._store.note_stall(one.claim.job_id, one.claim.fence, stall)
            one.stalled = stall is not None
