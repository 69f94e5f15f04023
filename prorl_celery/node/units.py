"""What a supervisor runs: a `Unit` says what, after what, how to stop it; a `Slot` is where its child of now is."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.node.children import Child, Start

BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 10.0
HEALTHY_S = 10.0
"""A child that lived this long is forgiven its earlier deaths."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Something to keep running. `start` is called for every start, so that each may differ (a new boot
    id).
    """

    name: str
    start: Callable[[], Start]
    after: tuple[str, ...] = ()
    """Units that must be ready before this one is started, or started again."""
    probe: Callable[[], bool] | None = None
    """Runs in a fork; returns True once the unit is ready, False when it gave up (the unit is then
    killed).
    """
    once: bool = False
    """Ends by itself: ready when it ended with 0. With another code it is `vital`'s question what follows."""
    vital: bool = False
    """For `once`: when it fails, all is stopped and the supervisor's exit code is 1."""
    asked_by: str = ""
    """The request (`node.requests`) at which it is started; without it, it does not run, nor is it started again."""
    kept: bool = False
    """It lives on through a rolling restart: what it holds must not end, or it runs no code of ours."""
    replaces: tuple[str, ...] = ()
    """Units that are worthless when this one dies: they are told to stop and replaced by fresh ones."""
    stop_signal: signal.Signals = signal.SIGTERM
    replace_signal: signal.Signals = signal.SIGTERM
    """What tells it to end while the service goes on, for a fresh one."""
    death_signal: signal.Signals = signal.SIGKILL
    grace_seconds: float = 5.0
    stop_phase: int = 0
    log: Path | None = None


@dataclass(slots=True)
class Slot:
    """A unit's place: its child, where one runs, and when the next is due."""

    unit: Unit
    child: Child | None = None
    probe: Child | None = None
    ready: bool = False
    done: bool = False
    """A unit that ends by itself has ended."""
    wanted: bool = False
    """A unit that is started when asked for has been asked for."""
    failures: int = 0
    due: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing is to be started here whatever the time."""
        return self.child is not None or self.done or (bool(self.unit.asked_by) and not self.wanted)

    def put_off(self) -> float:
        """Decide when it is started again: in how many seconds, longer from one failure to the next."""
        delay = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2 ** (self.failures - 1)) if self.failures else 0.0
        self.failures = min(self.failures + 1, 32)
        self.due = time.monotonic() + delay
        return delay

    def put_off_after(self, child: Child) -> float:
        """The same, after a child whose life counts as a failure if it was short."""
        if time.monotonic() - child.started_at >= HEALTHY_S:
            self.failures = 0
        return self.put_off()

    def vacate(self) -> Child | None:
        """Make room for a fresh child at once; the one that there was, which may go on beside it."""
        child, self.child = self.child, None
        self.ready, self.due = False, 0.0
        if self.probe is not None:
            self.probe.kill()
            self.probe = None
        return child
