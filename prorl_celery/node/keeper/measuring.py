"""The exact measure of sandboxes' memory, taken in a child: the kernel looks at every page for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.work import ChildWork
from prorl_celery.sandbox import memory
from prorl_celery.sandbox.launch import User

log = logging.getLogger(__name__)

SECONDS = 20.0
AT_ONCE = 16
"""Sandboxes that one child measures."""
LARGEST = 64
"""Processes of a sandbox that are told one by one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A sandbox's memory in bytes, each page counted once."""

    own: int
    shared: int
    largest: list[tuple[int, int]]
    """Bytes and pid of the largest processes."""


Done = Callable[[Measured | None], None]
"""Called with None when it could not be measured."""


class Measuring:
    """One child at a time, for all sandboxes that wait."""

    def __init__(self, loop: Loop, user: User | None) -> None:
        self._loop = loop
        self._user = user
        self._waiting: dict[str, tuple[list[memory.Process], Done]] = {}
        self._work: ChildWork | None = None

    @property
    def pids(self) -> set[int]:
        return set() if self._work is None else {self._work.pid}

    def measure(self, name: str, processes: list[memory.Process], done: Done) -> None:
        """Measure a sandbox's processes, after those that wait already."""
        self._waiting[name] = (processes, done)
        if self._work is None:
            self._begin()

    def _begin(self) -> None:
        names = list(self._waiting)[:AT_ONCE]
        taken = {name: self._waiting.pop(name) for name in names}
        work = {name: processes for name, (processes, _) in taken.items()}

        def finished(result: Any, error: SandboxError | None) -> None:
            self._work = None
            if error is not None:
                log.warning("the memory of sandboxes could not be measured: %s", error)
            for name, (_, done) in taken.items():
                found = None if error is not None else result[name]
                done(None if found is None else Measured(found[0], found[1], [(s, p) for s, p in found[2]]))
            if self._waiting and self._work is None:
                self._begin()

        try:
            self._work = ChildWork(lambda: _measure_all(work, self._user), self._loop, finished, timeout=SECONDS)
        except OSError as failed:  # no process or descriptor left: that may pass
            error = SandboxError(str(failed))
            self._loop.after(0.0, lambda: finished(None, error))


def _measure_all(work: dict[str, list[memory.Process]], user: User | None) -> dict[str, Any]:
    """In the child. As the sandboxes' own user, who may look at them where a container's root may not."""
    if user is not None:
        user.become()
    return {name: _measure(processes) for name, processes in work.items()}


def _measure(processes: list[memory.Process]) -> tuple[int, int, list[tuple[int, int]]]:
    own = shared = 0
    sizes = []
    for process in processes:
        try:
            mine, ours = memory.exact(process.pid)
        except ProcessLookupError:
            continue
        except OSError:  # we may not look: then its own memory is what we know
            mine, ours = process.anonymous, 0
        own += mine
        shared += ours
        sizes.append((mine + ours, process.pid))
    return own, shared, sorted(sizes, reverse=True)[:LARGEST]
