"""Backends that go while a job has one: who is told of it, and what a failed call may mean.

The process hears of changes on the channel `backends`, looks them up, and tells the conversations that are at a backend
that no longer serves them: a call in flight ends at once, whether the backend closed or hangs.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import defaultdict

from prorl_celery.errors import BackendGone, ProrlError, StageTimeout, StoreUnavailable
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.health import PROBE_SECONDS, well
from tasks.signals import JobSignal

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 5.0
"""A message is lost while the listener's connection is down; looking again at this pace makes that harmless."""
WELL_SECONDS = 1.0
"""How long a health check's good answer holds for others whose calls failed."""
VERDICT_SECONDS = 5.0
"""The leader finds out within four seconds that a backend is gone."""
ASK_AGAIN_SECONDS = 0.25


class CallSignal:
    """A `CancelSignal` for a conversation's calls: set when the job must stop, or when its backend has gone.

    Its descriptor is an epoll set of the two, which can be polled itself. `at` clears the loss.
    """

    def __init__(self, job: JobSignal, policy_version: int | None) -> None:
        self.backend: Backend | None = None
        self._job = job
        self._pinned = policy_version
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._either = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._either.register(self._fd, select.EPOLLIN)
        self._either.register(job.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        return self._either.fileno()

    @property
    def is_set(self) -> bool:
        return self._job.is_set or self._lost is not None

    @property
    def lost(self) -> bool:
        """Whether the backend has gone."""
        return self._lost is not None

    def raise_if_set(self) -> None:
        """Raise what the job's signal raises, `BackendGone` when the backend has gone."""
        self._job.raise_if_set()
        if (why := self._lost) is not None:
            raise BackendGone(why, url=self.backend.url if self.backend else None)

    def at(self, backend: Backend) -> None:
        """The conversation is at this backend now."""
        with self._lock:
            self.backend = backend
            if self._lost is not None:
                self._lost = None
                os.eventfd_read(self._fd)

    def judge(self, url: str, record: Backend | None) -> None:
        """Set the signal if the conversation is at this backend and cannot stay, as the record says."""
        with self._lock:
            mine = self.backend
            if mine is None or mine.url != url or self._lost is not None or self._fd < 0:
                return
            if record is None or record.model != mine.model:
                self._lost = f"{url} was taken out"
            elif record.state == "down":
                self._lost = f"{url} is down"
            elif self._pinned is not None and record.policy_version != self._pinned:
                self._lost = f"{url} has left version {self._pinned}"
            else:
                return
            os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        """Close the descriptors; a later `judge` is harmless."""
        with self._lock:
            if self._fd >= 0:
                self._either.close()
                os.close(self._fd)
                self._fd = -1


class BackendWatch:
    """One for a process. Thread-safe; starts no thread of its own."""

    def __init__(self, backends: BackendRegistry, models: ModelLoop) -> None:
        self._backends = backends
        self._models = models
        self._lock = threading.Lock()
        self._signals: set[CallSignal] = set()
        self._suspected: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._stays: dict[str, float] = {}
        """url -> until when it is not out, as far as is known here."""
        self._looked = time.monotonic()
        self.changes = 0
        """How many changes were heard of: who finds another number after an acquire has missed one."""

    def add(self, signal: CallSignal) -> None:
        with self._lock:
            self._signals.add(signal)

    def discard(self, signal: CallSignal) -> None:
        with self._lock:
            self._signals.discard(signal)

    def heard(self) -> None:
        """A backend has changed, says the listener."""
        self.changes += 1
        self.look()

    def idle(self) -> None:
        """Nothing was heard for a while."""
        if time.monotonic() > self._looked + LOOK_AGAIN_SECONDS:
            self.look()

    def look(self) -> None:
        """See whether all conversations may stay where they are, and tell those that may not."""
        self._looked = time.monotonic()
        with self._lock:
            signals = list(self._signals)
        urls = {signal.backend.url for signal in signals if signal.backend is not None}
        if not urls:
            return
        try:
            records = self._backends.serving(sorted(urls))
        except StoreUnavailable as error:
            log.warning("the backends' states are out of reach: %s", error)
            return
        for signal in signals:
            for url, record in records.items():
                signal.judge(url, record)

    def has_gone(self, url: str, job: JobSignal) -> bool:
        """Whether a backend whose call has failed is out. One that answers its health check is not.

        For one that does not, the leader's word is waited for: it asks each second. A process that cannot reach a
        backend must not take it from the others, who can.
        Raises: what the job's signal raises, `StoreUnavailable`.
        """
        with self._lock:
            suspected = self._suspected[url]
        with suspected:  # a dead backend fails many calls at once, and one of them may ask
            deadline = time.monotonic() + VERDICT_SECONDS
            while True:
                record = self._backends.get(url)
                if record is None or record.state == "down":
                    return True
                if time.monotonic() < self._stays.get(url, 0.0):
                    return False
                if self._answers(url, job):
                    self._stays[url] = time.monotonic() + WELL_SECONDS
                    return False
                if time.monotonic() > deadline:
                    log.warning("backend %s does not answer here, and is up for the others", url)
                    self._stays[url] = time.monotonic() + VERDICT_SECONDS
                    return False
                job.wait(ASK_AGAIN_SECONDS)

    def count_error(self, url: str) -> None:
        """One more call that failed for good."""
        try:
            self._backends.change(url, more_errors=1)
        except ProrlError as error:
            log.warning("an error of %s is not counted: %s", url, error)

    def _answers(self, url: str, job: JobSignal) -> bool:
        async def ask() -> bool | None:
            return await well(self._models.session, url)

        try:
            return self._models.call(ask, cancel=job, timeout=2 * PROBE_SECONDS) is not False
        except StageTimeout:
            # The probe has a time-out of its own: our loop was held up, and nothing is known of the backend.
            job.raise_if_set()
            return True
