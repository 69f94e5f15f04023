"""A stage's clock: it runs while work is done, stands still in a wait that is nobody's work, and fires a deadline.

One thread per process fires the deadlines of all its jobs.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prorl_celery.errors import StageTimeout
from tasks.signals import JobSignal


class DeadlineThread:
    """Fires deadlines. `call_at` returns a ticket; `forget` takes it back."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, StageClock]] = []
        self._live: set[int] = set()
        self._numbers = itertools.count()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def call_at(self, when: float, clock: StageClock) -> int:
        with self._condition:
            ticket = next(self._numbers)
            self._live.add(ticket)
            heapq.heappush(self._heap, (when, ticket, clock))
            if self._heap[0][1] == ticket:
                self._condition.notify()
            return ticket

    def forget(self, ticket: int) -> None:
        """Entries are dropped when they surface, or at once when most of the heap is dead."""
        with self._condition:
            self._live.discard(ticket)
            if len(self._heap) > 64 and len(self._heap) > 4 * len(self._live):
                self._heap = [entry for entry in self._heap if entry[1] in self._live]
                heapq.heapify(self._heap)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopping and not self._due():
                    self._condition.wait(self._heap[0][0] - time.monotonic() if self._heap else 3600.0)
                if self._stopping:
                    return
                _, ticket, clock = heapq.heappop(self._heap)
                if ticket not in self._live:
                    continue
                self._live.discard(ticket)
            clock.overran()

    def _due(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= time.monotonic()


class StageClock:
    """Seconds of work of one stage of one job. The stage's thread drives it; others may read it.

    `spent_seconds` of the limit were worked in earlier claims of the same attempt; they count against the limit alone.
    """

    def __init__(
        self,
        limit_seconds: float,
        stage: str,
        signal: JobSignal,
        deadlines: DeadlineThread,
        spent_seconds: float = 0.0,
    ) -> None:
        self._limit = limit_seconds
        self._spent = spent_seconds
        self._stage = stage
        self._signal = signal
        self._deadlines = deadlines
        self._worked = 0.0
        self._waited = 0.0
        self._since = time.monotonic()
        self._running = False
        self._ticket: int | None = None

    @property
    def worked_seconds(self) -> float:
        return self._worked + (time.monotonic() - self._since if self._running else 0.0)

    @property
    def waited_seconds(self) -> float:
        return self._waited + (0.0 if self._running else time.monotonic() - self._since)

    @property
    def remaining_seconds(self) -> float:
        return max(0.0, self._limit - self._spent - self.worked_seconds)

    @property
    def running(self) -> bool:
        """Whether work is done now, and no wait that is nobody's fault."""
        return self._running

    def start(self) -> None:
        """Begin, or go on, to count work. What passed since the last stop was waiting."""
        if self._running:
            return
        now = time.monotonic()
        self._waited += now - self._since
        self._since, self._running = now, True
        self._ticket = self._deadlines.call_at(now + self._limit - self._spent - self._worked, self)

    def stop(self) -> None:
        """Stop counting work."""
        if not self._running:
            return
        now = time.monotonic()
        self._worked += now - self._since
        self._since, self._running = now, False
        if self._ticket is not None:
            self._deadlines.forget(self._ticket)
            self._ticket = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A wait that is charged to no stage."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def overran(self) -> None:
        """Called by the deadline thread."""
        self._signal.set(StageTimeout(f"{self._stage} did not end within its {self._limit:g} s", stage=self._stage))
