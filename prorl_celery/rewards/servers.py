"""The reward servers that a process asks: how well each does, shared by all jobs of the process.

One that failed `OPEN_AFTER` calls in a row is held off: for a while nobody asks it, then one call tries it, and while
that fails, it is held off for longer. Asked on one event loop; `told` may be called by any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prorl_celery.rewards.urls import origin

log = logging.getLogger(__name__)

OPEN_AFTER = 5
FIRST_HOLD_SECONDS, LONGEST_HOLD_SECONDS = 1.0, 30.0
MOST_SERVERS = 64
"""Servers that are remembered; beyond, those that were not asked for longest are forgotten."""
OUTCOMES = ("scored", "failed", "busy", "refused")
"""Of a call: a score; none, which another call may cure; the server wants to be asked later; none for good."""


class RewardServer:
    """One server. The fields are written on the event loop alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = dict.fromkeys(OUTCOMES, 0)
        self.seconds = 0.0
        """All calls that were answered together."""
        self.failures = 0
        """Calls that failed in a row."""
        self.users = 0
        self._held_until = 0.0
        self._probing = False
        self._changed = asyncio.Event()

    @property
    def held_off(self) -> bool:
        """Whether it may be asked by nobody but the one call that tries it."""
        return self.failures >= OPEN_AFTER

    @asynccontextmanager
    async def place(self, until: float) -> AsyncIterator[None]:
        """Leave to make one call; waits while the server is held off. Raises TimeoutError at `until` (monotonic)."""
        self.users += 1
        probe = False
        try:
            probe = await self._wait(until)
            yield
        finally:
            self.users -= 1
            if probe:
                self._probing = False
                self._wake()

    def count(self, outcome: str, seconds: float) -> None:
        """One call has ended so. Whatever was answered, but for a fault, tells that the server is well."""
        self.calls[outcome] += 1
        if outcome == "failed":
            now = time.monotonic()
            if now < self._held_until:
                return  # it was asked before it was held off, as hundreds may have been: that tells nothing new
            self.failures += 1
            if self.held_off:
                hold = min(FIRST_HOLD_SECONDS * 2 ** min(self.failures - OPEN_AFTER, 10), LONGEST_HOLD_SECONDS)
                self._held_until = now + hold
                if self.failures == OPEN_AFTER:
                    log.warning("the reward server %s is held off: %d calls in a row failed", self.name, OPEN_AFTER)
            return
        self.seconds += seconds
        if self.held_off:
            log.warning("the reward server %s answers again", self.name)
            self._held_until = 0.0
            self._wake()
        self.failures = 0

    def told(self) -> dict[str, Any]:
        """As the process's record has it."""
        return {
            "server": self.name,
            "calls": dict(self.calls),
            "seconds": round(self.seconds, 3),
            "held_off": self.held_off,
        }

    async def _wait(self, until: float) -> bool:
        """Until the server may be asked; whether by the call that tries it."""
        while self.held_off:
            now = time.monotonic()
            if now >= until:
                raise TimeoutError
            if now >= self._held_until and not self._probing:
                self._probing = True
                return True
            look_again = until if self._probing else min(until, self._held_until)
            changed = self._changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_again - now):
                    await changed.wait()
        return False

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RewardServers:
    """Those of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[str, RewardServer] = {}

    def at(self, url: str) -> RewardServer:
        """The server of a url. On the event loop only."""
        name = origin(url)
        with self._lock:
            server = self._servers.pop(name, None) or RewardServer(name)
            idle = [old.name for old in self._servers.values() if not old.users]
            for old in idle[: max(0, len(self._servers) + 1 - MOST_SERVERS)]:
                del self._servers[old]
            self._servers[name] = server  # at the end: asked last
            return server

    def told(self) -> list[dict[str, Any]]:
        """What is known of each, as JSON."""
        with self._lock:
            return [server.told() for server in self._servers.values()]
