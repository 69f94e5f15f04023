"""Holds every sandbox to its memory: looks once a second, and kills what has most of it where a sandbox is over.

What counts is the memory of its processes. Files on its tmpfs have sizes of their own and count only beyond these, as
shared mappings without a file do. A sandbox in a control group is read in the group, which is exact and one small
file; otherwise the processes are added up, and since forks share pages that sum is only an upper bound: where it alone
is over, a child takes the exact measure (it takes milliseconds a GiB).

A look costs about 0.1 ms for 5 processes. Every sandbox has a timer of its own, begun at a random moment, so looks
do not come in heaps; together they get a tenth of the keeper's time, and come more seldom before they take more.
"""

from __future__ import annotations

import logging
import os
import random
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prorl_celery.node.keeper.loop import Loop, Timer
from prorl_celery.node.keeper.measuring import Measured, Measuring
from prorl_celery.node.keeper.process import SandboxProcess
from prorl_celery.node.keeper.terminal import tell
from prorl_celery.node.keeper.victims import kill_largest
from prorl_celery.sandbox import memory, owner, unseen
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.cgroups.readings import MemoryReading
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.limits import SMALL_BYTES, files_bytes

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
NEAR = 0.5
"""A sandbox that uses this much of its memory is looked at four times as often."""
AGAIN_SECONDS = 0.1
"""After a kill: what was killed takes a moment to give its memory back."""
DYING_SECONDS = 5.0
"""How long that may take before the next is killed, or before the sandbox is ended where there is nothing to kill."""
MOST_KILLS = 10
"""A sandbox still over after so many looks with a kill each, one after the other, is ended."""
SHARE = 0.1
"""Most of the keeper's time for looks."""


@dataclass(slots=True, eq=False)
class Watched:
    """One sandbox under watch."""

    name: str
    spec: SandboxSpec
    process: SandboxProcess
    inner: int | None
    """The first process of an instance beside the outer process, and when it started."""
    inner_start: int | None
    reading: MemoryReading | None = None
    timer: Timer | None = None
    cost: float = 0.0
    dying: list[int] = field(default_factory=list)
    """pidfds of what was killed at the last look."""
    dying_until: float = 0.0
    strikes: int = 0
    """Looks with a kill, one after the other."""
    suspected: bool = False
    """The last exact measure found it over. It is not of one moment: processes that end meanwhile leave their part of
    a page to the others. So it takes two.
    """
    helpless_since: float | None = None
    """Since when it has been over without a process that could be killed."""

    @property
    def roots(self) -> list[int]:
        """What all its processes descend from."""
        return [self.process.pid] if self.inner is None else [self.process.pid, self.inner]

    @property
    def mib(self) -> int:
        return self.spec.memory_bytes >> 20

    @property
    def most(self) -> int:
        """Processes that are looked at: more than there can be, where their number is limited."""
        return 2 * self.spec.processes + 64


class Watchdog:
    """Watches; calls `end` with the name of a sandbox that cannot be brought under its limit."""

    def __init__(self, loop: Loop, user: User | None, end: Callable[[str], None]) -> None:
        self._loop = loop
        self._end = end
        self._watched: dict[str, Watched] = {}
        self._round = 0.0
        self._measuring = Measuring(loop, user)
        self.kills = 0

    @property
    def pids(self) -> set[int]:
        """Children of the keeper that are the watchdog's."""
        return self._measuring.pids

    def watch(self, name: str, spec: SandboxSpec, process: SandboxProcess, inner: int | None = None) -> None:
        """Begin with a sandbox. `inner`: the first process of an instance beside the outer process."""
        watched = Watched(name, spec, process, inner, None if inner is None else owner.start_time(inner))
        self._watched[name] = watched
        self._again(watched, random.random() * LOOK_SECONDS)

    def read_from(self, name: str, reading: MemoryReading) -> None:
        """The sandbox has got a control group."""
        if name in self._watched:
            self._watched[name].reading = reading

    def forget(self, name: str) -> None:
        """The sandbox is gone. Idempotent."""
        watched = self._watched.pop(name, None)
        if watched is not None:
            self._round -= watched.cost
            if watched.timer is not None:
                watched.timer.cancel()
            _close(watched)

    def _again(self, watched: Watched, seconds: float) -> None:
        watched.timer = self._loop.after(seconds, lambda: self._look(watched))

    def _look(self, watched: Watched) -> None:
        if not watched.process.alive:  # it is ending, and its pid may be another's by now
            return
        if _still_dying(watched):
            self._again(watched, AGAIN_SECONDS)
            return
        began = time.perf_counter()
        used = self._used(watched)
        cost = time.perf_counter() - began
        self._round += cost - watched.cost
        watched.cost = cost
        if used is not None:
            self._rest(watched, used)

    def _used(self, watched: Watched) -> int | None:
        """Bytes in use, roughly; None when the sandbox is over, or may be, and that is being seen to."""
        limit, files = watched.spec.memory_bytes, files_bytes(watched.spec)
        if watched.reading is not None:
            try:
                used = watched.reading.usage()
                if used <= limit:
                    return used
                own, shared = watched.reading.parts()
            except (OSError, ValueError):
                watched.reading = None  # the group has gone, and the sandbox goes
            else:
                used = own + max(0, shared - files)
                if used <= limit:
                    return used
                sizes = [(process.anonymous, process.pid) for process in memory.walk(watched.roots, watched.most)]
                self._relieve(watched, used, sizes)
                return None
        processes = memory.walk(watched.roots, watched.most)
        held = unseen.memory_files([process.pid for process in processes])
        kept = max(0, unseen.kept_for_files(processes[-1].pid, _largest(watched.spec)) - files) if processes else 0
        used = kept + sum(process.anonymous for process in processes)
        if max((process.anonymous for process in processes), default=0) > limit:
            self._relieve(watched, used, [(process.anonymous, process.pid) for process in processes])
            return None
        resident = sum(process.resident for process in processes)
        if kept > limit:  # files stay when those who made them are killed
            self._give_up(watched)
            return None
        seen = sum(held.values()) if resident <= limit + files else max(memory.shared(processes), sum(held.values()))
        if used + max(0, seen - files) <= limit:
            return used
        self._measuring.measure(watched.name, processes, lambda exact: self._measured(watched, exact, held, kept))
        return None

    def _measured(self, watched: Watched, measured: Measured | None, held: Mapping[int, int], kept: int) -> None:
        """`held`: memory files by process; `kept`: what files on tmpfs cost beyond what they may."""
        if self._watched.get(watched.name) is not watched or not watched.process.alive:
            return
        if measured is None:
            self._again(watched, LOOK_SECONDS)
            return
        # Memory files that are mapped are among what is shared.
        used = measured.own + kept + max(0, max(measured.shared, sum(held.values())) - files_bytes(watched.spec))
        if used <= watched.spec.memory_bytes:
            self._rest(watched, used)
        elif watched.suspected:
            sizes = dict((pid, size) for size, pid in measured.largest)
            self._relieve(watched, used, [(sizes.get(pid, 0) + held.get(pid, 0), pid) for pid in {*sizes, *held}])
        else:
            watched.suspected = True
            self._again(watched, AGAIN_SECONDS)

    def _rest(self, watched: Watched, used: int) -> None:
        watched.strikes, watched.suspected, watched.helpless_since = 0, False, None
        near = used > watched.spec.memory_bytes * NEAR
        self._again(watched, max(LOOK_SECONDS / 4 if near else LOOK_SECONDS, self._round / SHARE))

    def _relieve(self, watched: Watched, used: int, sizes: list[tuple[int, int]]) -> None:
        """Bring a sandbox that uses too much under its limit, or end it."""
        if watched.inner is not None and owner.start_time(watched.inner) != watched.inner_start:
            watched.inner = None  # it has ended, and its pid may be another's by now
            self._again(watched, AGAIN_SECONDS)
            return
        killed = kill_largest(
            sizes, used - watched.spec.memory_bytes, watched.roots, lambda victims: self._say(watched, victims)
        )
        now = time.monotonic()
        if killed:
            self.kills += len(killed)
            watched.dying, watched.dying_until, watched.helpless_since = killed, now + DYING_SECONDS, None
            watched.strikes += 1
        elif watched.helpless_since is None:  # what the kernel has killed may be giving back its memory
            watched.helpless_since = now
        if watched.strikes > MOST_KILLS or now - (watched.helpless_since or now) > DYING_SECONDS:
            self._give_up(watched)
        else:
            self._again(watched, AGAIN_SECONDS)

    def _give_up(self, watched: Watched) -> None:
        log.warning("ending sandbox %s: it stays over its memory of %d MiB", watched.name, watched.mib)
        tell(watched.process, f"ending the sandbox: it stays over its memory of {watched.mib} MiB")
        self._end(watched.name)

    def _say(self, watched: Watched, victims: str) -> None:
        log.info("sandbox %s is over its memory of %d MiB: killing %s", watched.name, watched.mib, victims)
        tell(watched.process, f"killed {victims}: over the sandbox's memory of {watched.mib} MiB")


def _largest(spec: SandboxSpec) -> int:
    """No tmpfs of a sandbox's is larger."""
    return max(spec.disk_bytes, SMALL_BYTES)


def _still_dying(watched: Watched) -> bool:
    """Whether what was killed at the last look has yet to end, and may."""
    if not watched.dying:
        return False
    poll = select.poll()
    for pidfd in watched.dying:
        poll.register(pidfd, select.POLLIN)
    if len(poll.poll(0)) < len(watched.dying) and time.monotonic() < watched.dying_until:
        return True
    _close(watched)
    return False


def _close(watched: Watched) -> None:
    for pidfd in watched.dying:
        os.close(pidfd)
    watched.dying = []
