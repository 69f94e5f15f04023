"""Whom a soak kills, and how what that hits is noted.

A worker is held by SIGSTOP for the moment between the look at its jobs and its end, so that the look is exact.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prorl_celery.bench.processes import table
from prorl_celery.bench.service import BenchService
from prorl_celery.bench.soak.plan import Plan
from prorl_celery.bench.soak.recovery import Hit, Jobs, hit_of
from prorl_celery.errors import SandboxError, StoreUnavailable
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.testing import ScriptedBackend

WEIGHTS = {
    "rollout": 30,
    "init": 15,
    "eval": 15,
    "solo": 10,
    "upkeep": 6,
    "api": 6,
    "redis": 6,
    "backend": 10,
    "keeper": 2,
}
"""How often each part is the one, of a hundred."""

STAGES = ("init", "rollout", "eval", "solo")
REDIS_NAMES = ("redis-server", "valkey-server")


@dataclass(slots=True)
class Killer:
    """Kills by the seed. Single-threaded: `strike` and `revive` are called by the soak's own loop."""

    plan: Plan
    service: BenchService
    node: str
    jobs: Jobs
    nodes: NodeRegistry
    backends: Sequence[ScriptedBackend]
    kills: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    """What was killed when, by the wall clock, as the service's logs tell it."""
    keeper_losses: list[float] = field(default_factory=list)
    _rng: random.Random = field(init=False)
    _down: list[tuple[float, ScriptedBackend]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.plan.seed + 1)

    def next_in(self) -> float:
        """Seconds until the next kill."""
        return self.plan.kill_every * self._rng.uniform(0.5, 1.5)

    def strike(self) -> list[Hit]:
        """Kill one part; the jobs that this hit. Nothing where that part is not there just now."""
        name = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        luck = self._rng.random()
        if name == "backend":
            return self._kill_backend(luck)
        pids = self._pids(name)
        if not pids:
            return []
        pid = sorted(pids)[int(luck * len(pids))]
        if name in STAGES:
            return self._kill_worker(name, pid)
        hits = []
        if name in ("redis", "keeper"):
            at = time.monotonic()
            hits = [hit_of(i, r, name, at) for i, r in self._live().items() if name == "redis" or r["sandboxes"]]
        self._kill(name, pid)
        if name == "keeper":
            self.keeper_losses.append(time.monotonic())
        return hits

    def revive(self, *, all_of_them: bool = False) -> None:
        """Start the backends again whose time has come."""
        now = time.monotonic()
        due = [one for one in self._down if all_of_them or one[0] <= now]
        self._down = [one for one in self._down if one not in due]
        for _, backend in due:
            backend.start()

    def _kill_worker(self, name: str, pid: int) -> list[Hit]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        process = self._process_id(pid)
        at = time.monotonic()
        hits = [hit_of(i, r, name, at) for i, r in self._live().items() if process and r["process"] == process]
        self._kill(name, pid)
        return hits

    def _kill_backend(self, luck: float) -> list[Hit]:
        up = [backend for backend in self.backends if all(backend is not down for _, down in self._down)]
        if len(up) < len(self.backends):  # one at a time: a model without any backend only waits
            return []
        backend = up[int(luck * len(up))]
        at = time.monotonic()
        records = self._live().items()
        hits = [
            hit_of(i, r, "backend", at) for i, r in records if r["backend"] == backend.url and r["stage"] == "rollout"
        ]
        backend.kill()
        self._note("backend", backend.url)
        self._down.append((at + self._rng.uniform(*self.plan.backend_down_s), backend))
        return hits

    def _kill(self, name: str, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._note(name, str(pid))

    def _note(self, name: str, which: str) -> None:
        self.kills[name] += 1
        self.log.append(f"{datetime.now(UTC):%H:%M:%S.%f} {name} {which}")

    def _live(self) -> dict[str, dict[str, str]]:
        """The running jobs of the node; none where Redis is away."""
        try:
            return {i: r for i, r in self.jobs.live(self.node).items() if r["state"] in ("running", "queued")}
        except StoreUnavailable:
            return {}

    def _process_id(self, pid: int) -> str | None:
        """What the worker of that pid calls itself in the records of its jobs."""
        try:
            nodes = self.nodes.nodes()
        except StoreUnavailable:
            return None
        return next((str(p["id"]) for node in nodes for p in node["processes"] if p["pid"] == pid), None)

    def _pids(self, name: str) -> list[int]:
        if name == "keeper":
            try:
                return [int(self.service.keeper.status()["pid"])]
            except SandboxError:
                return []
        mine = [process for process in table().values() if process.parent == self.service.pid]
        if name == "redis":
            return [process.pid for process in mine if process.name in REDIS_NAMES]
        if name in STAGES:
            return [process.pid for process in mine if process.name.startswith(f"prorl-{name}-")]
        return [process.pid for process in mine if process.name == f"prorl-{name}"]
