"""Long-polls that Redis wakes: one listener per process reads the results stream and wakes the threads it concerns.

A waiting thread costs no Redis command: it sleeps on an event of its own. The listener has one blocking read of the
stream of finished jobs in flight, whatever the number of waiters. Nothing is missed: a waiter registers first and looks
at the job's state afterwards, and the listener has a fixed place in the stream before the first waiter looks.

After Redis was away the listener takes up the stream where it left it and wakes everybody once, so that each looks
again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from prorl_celery.errors import StoreUnavailable

log = logging.getLogger("prorl.web.waiters")

BLOCK_SECONDS = 15.0
"""Length of one blocking read. It bounds only how long a closed listener lingers."""

BACKOFF_SECONDS = (0.1, 2.0)
"""First and longest pause between attempts to reach Redis again."""


class EndedJobs(Protocol):
    """The stream of finished jobs, as the listener needs it. Both raise `StoreUnavailable`."""

    def end(self) -> str:
        """The stream's present end: what finishes from now on comes after it."""
        ...

    def read(self, after: str, timeout: float) -> tuple[Sequence[str], str]:
        """The ids of jobs that finished after a place, and the new place; waits up to `timeout` seconds for one."""
        ...


class Watch:
    """One thread's wait. Use it as a context manager: leaving it takes it off the list."""

    def __init__(self, waiters: Waiters, job_id: str | None) -> None:
        self._waiters = waiters
        self.job_id = job_id
        self._event = threading.Event()

    def wait(self, timeout: float) -> bool:
        """Sleep until woken (True) or the time is over (False). A later call waits for a later wake."""
        if timeout <= 0:
            return False
        woken = self._event.wait(timeout)
        self._event.clear()
        return woken

    def wake(self) -> None:
        """Let the waiting thread look."""
        self._event.set()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._waiters.forget(self)


class Waiters:
    """All long-polls of this process, at most `limit`. The listener starts with the first of them."""

    def __init__(self, ended: EndedJobs, *, limit: int, block_seconds: float = BLOCK_SECONDS) -> None:
        self._ended = ended
        self._limit = limit
        self._block_seconds = block_seconds
        self._lock = threading.Lock()
        self._watches: dict[str | None, set[Watch]] = defaultdict(set)
        self._count = 0
        self._listener: threading.Thread | None = None
        self._placed = threading.Event()
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether the process is stopping: nobody should wait any more."""
        return self._closed.is_set()

    def __len__(self) -> int:
        return self._count

    def watch(self, job_id: str | None, *, within: float) -> Watch | None:
        """Register a wait for a job's end, or with None for any job's; None when there are too many already.

        Look at the state after this returns. It waits up to `within` seconds for the listener to have its place.
        """
        watch = Watch(self, job_id)
        with self._lock:
            if self._count >= self._limit or self.closed:
                return None
            self._watches[job_id].add(watch)
            self._count += 1
            if self._listener is None or not self._listener.is_alive():
                self._listener = threading.Thread(target=self._listen, name="prorl-results-listener", daemon=True)
                self._listener.start()
        self._placed.wait(within)
        return watch

    def forget(self, watch: Watch) -> None:
        """Take a wait off the list; a second time is harmless."""
        with self._lock:
            watches = self._watches.get(watch.job_id, set())
            if watch in watches:
                watches.discard(watch)
                self._count -= 1
                if not watches:
                    del self._watches[watch.job_id]

    def close(self) -> None:
        """Wake everybody and let nobody wait again: the process stops."""
        self._closed.set()
        self._placed.set()
        self._wake_all()

    def _wake_all(self) -> None:
        with self._lock:
            watches = [watch for group in self._watches.values() for watch in group]
        for watch in watches:
            watch.wake()

    def _wake(self, job_ids: Sequence[str]) -> None:
        with self._lock:
            keys: list[str | None] = [*job_ids, None] if job_ids else []
            watches = [watch for key in keys for watch in self._watches.get(key, ())]
        for watch in watches:
            watch.wake()

    def _listen(self) -> None:
        place: str | None = None
        away_since: float | None = None
        pause = BACKOFF_SECONDS[0]
        while not self.closed:
            try:
                if place is None:
                    place = self._ended.end()
                    self._placed.set()
                # After an absence look first and wait afterwards: everybody is to hear of it at once.
                timeout = 0.0 if away_since is not None else self._block_seconds
                job_ids, place = self._ended.read(place, timeout)
            except StoreUnavailable as error:
                if away_since is None:
                    away_since = time.monotonic()
                    log.warning("the results stream is out of reach, trying again: %s", error)
                self._closed.wait(pause)
                pause = min(pause * 2, BACKOFF_SECONDS[1])
                continue
            if away_since is not None:
                log.warning("the results stream is back after %.1f s", time.monotonic() - away_since)
                away_since, pause = None, BACKOFF_SECONDS[0]
                self._wake_all()
            else:
                self._wake(job_ids)
