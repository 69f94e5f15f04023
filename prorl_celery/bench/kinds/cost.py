"""How much is done for a second of processor time, and how long two ways take in turns.

Processor time is that of this process and all below it: the nursery's children, the keeper and its sandboxes. What ends
with a sandbox's process namespace is waited for by nobody, so its time goes into no other process's sum: it is taken
before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from prorl_celery.bench.processes import cpu_seconds
from prorl_celery.bench.report import BenchFailed, Report
from prorl_celery.sandbox.base import Sandbox

LEAST_CPU_SECONDS = 0.2
"""The kernel counts processor time in hundredths of a second: less than this says little."""
LEAST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """What was done, and what it took."""

    count: int
    cpu_s: float
    wall_s: float

    def into(self, report: Report, name: str) -> None:
        """As `NAME_per_cpu_s` and `NAME_per_s`."""
        report.figures[f"{name}_per_cpu_s"] = self.count / self.cpu_s
        report.figures[f"{name}_per_s"] = self.count / self.wall_s


def names_of(*names: str) -> tuple[str, ...]:
    """The figures that `Cost.into` takes of each name."""
    return tuple(f"{name}_per_{unit}" for name in names for unit in ("cpu_s", "s"))


class Meter:
    """Counts processor time, of which a look at all processes is none."""

    def __init__(self) -> None:
        self._lost = 0.0
        self._looking = 0.0

    def cpu_s(self) -> float:
        """Seconds so far, since some time or other."""
        began = time.thread_time()
        seen = cpu_seconds(os.getpid())
        self._looking += time.thread_time() - began
        return seen + self._lost - self._looking

    def metered(self, start: Callable[[], Sandbox]) -> Callable[[], Sandbox]:
        """As `start`; what its sandboxes have used by their end is counted on."""
        return lambda: cast(Sandbox, _Metered(start(), self))

    def ended(self, end: Callable[[], None]) -> None:
        """Call what ends processes."""
        before = self.cpu_s()
        end()
        self._lost += max(0.0, before - self.cpu_s())


class _Metered:
    """A sandbox whose end is told to a meter."""

    def __init__(self, sandbox: Sandbox, meter: Meter) -> None:
        self._sandbox = sandbox
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    def stop(self) -> None:
        self._meter.ended(self._sandbox.stop)


def cost(act: Callable[[int], int], seconds: float, meter: Meter | None = None) -> Cost:
    """Call `act` with 0, 1, 2... for so many seconds, and longer where that used too little; it returns how many things
    it did. The first call, which loads what is needed, is not counted.
    """
    meter = meter or Meter()
    act(0)
    count, calls = 0, 0
    cpu_before, began = meter.cpu_s(), time.monotonic()
    while True:
        until = time.monotonic() + seconds
        while True:
            count += act(calls)
            calls += 1
            if time.monotonic() >= until:
                break
        wall, cpu = time.monotonic() - began, meter.cpu_s() - cpu_before
        if cpu >= LEAST_CPU_SECONDS:
            return Cost(count, cpu, wall)


def in_turns(ways: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call of each way, in turns, for so many seconds; a first turn is not counted."""
    for act in ways.values():
        act()
    took: dict[str, list[float]] = {name: [] for name in ways}
    until = time.monotonic() + seconds
    turns = 0
    while turns < LEAST_TURNS or time.monotonic() < until:
        turns += 1
        for name, act in ways.items():
            began = time.perf_counter()
            act()
            took[name].append((time.perf_counter() - began) * 1000)
    return took


def expect(reward: object, wanted: float, what: str) -> None:
    """Raises: `BenchFailed` when a verdict is not the one that it should be: then nothing is measured."""
    if reward != wanted:
        raise BenchFailed(f"{what} came to the reward {reward!r}, not {wanted:g}")
