"""The keeper's event loop: descriptors, timers, one thread, nothing that blocks."""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable

LONGEST_WAIT_SECONDS = 60.0


class Timer:
    """A call to come; `cancel` makes it not come."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """epoll with timers."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watchers: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = True

    def watch(self, descriptor: int, call: Callable[[], None], events: int = select.EPOLLIN) -> None:
        """Call back whenever the descriptor is readable (or has other `events`) or its other end is gone."""
        self._epoll.register(descriptor, events)
        self._watchers[descriptor] = call

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; before the descriptor is closed."""
        if self._watchers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call back once, `seconds` from now."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def run(self) -> None:
        """Serve until `stop`."""
        while self._running:
            for descriptor, _ in self._epoll.poll(self._until_next_timer()):
                call = self._watchers.get(descriptor)  # an earlier call may have dropped it
                if call is not None:
                    call()
            self._run_timers()

    def resume(self) -> None:
        """Serve again after `stop`."""
        self._running = True
        self.run()

    def stop(self) -> None:
        self._running = False

    def _until_next_timer(self) -> float:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return LONGEST_WAIT_SECONDS
        return min(LONGEST_WAIT_SECONDS, max(0.0, self._timers[0][0] - time.monotonic()))

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is not None:
                call()
