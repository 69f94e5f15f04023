"""Holds every sandbox to its memory: looks once a second, and kills what has most of it where a sandbox is over.

A look (`counting`) costs about 0.1 ms for 5 processes, or 0.02 ms in a control group. Where it leaves a doubt, a child
takes the exact measure (`measuring`; it takes milliseconds a GiB). Every sandbox has a timer of its own, begun at a
random moment, so looks do not come in heaps; together they get a tenth of the keeper's time, and come more seldom
before they take more.
"""

from __future__ import annotations

import logging
import os
import random
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prorl_celery.node.keeper.counting import Look, Unseen, by_group, by_walk, exactly
from prorl_celery.node.keeper.loop import Loop, Timer
from prorl_celery.node.keeper.measuring import Measured, Measuring
from prorl_celery.node.keeper.process import SandboxProcess
from prorl_celery.node.keeper.terminal import tell
from prorl_celery.node.keeper.victims import kill_largest
from prorl_celery.sandbox import owner
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.cgroups.readings import MemoryReading
from prorl_celery.sandbox.launch import User

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
    unseen: Unseen = field(default_factory=Unseen)
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
        began = time.process_time()
        look = _look_at(watched)
        cost = time.process_time() - began
        self._round += cost - watched.cost
        watched.cost = cost
        if look.unclear:
            self._measuring.measure(watched.name, look.processes, lambda measured: self._measured(watched, measured))
        else:
            self._judge(watched, look)

    def _measured(self, watched: Watched, measured: Measured | None) -> None:
        if self._watched.get(watched.name) is not watched or not watched.process.alive:
            return
        if measured is None:
            self._again(watched, LOOK_SECONDS)
            return
        look = exactly(measured.own, measured.shared, measured.largest, watched.unseen, watched.spec)
        if look.over and not watched.suspected:
            watched.suspected = True
            self._again(watched, AGAIN_SECONDS)
        else:
            self._judge(watched, look)

    def _judge(self, watched: Watched, look: Look) -> None:
        if look.hopeless:
            self._give_up(watched)
        elif look.over:
            self._relieve(watched, look)
        else:
            self._rest(watched, look.used)

    def _rest(self, watched: Watched, used: int) -> None:
        watched.strikes, watched.suspected, watched.helpless_since = 0, False, None
        near = used > watched.spec.memory_bytes * NEAR
        self._again(watched, max(LOOK_SECONDS / 4 if near else LOOK_SECONDS, self._round / SHARE))

    def _relieve(self, watched: Watched, look: Look) -> None:
        """Bring a sandbox that uses too much under its limit, or end it."""
        if watched.inner is not None and owner.start_time(watched.inner) != watched.inner_start:
            watched.inner = None  # it has ended, and its pid may be another's by now
            self._again(watched, AGAIN_SECONDS)
            return
        excess = look.used - watched.spec.memory_bytes
        killed = kill_largest(look.sizes, excess, watched.roots, lambda victims: self._say(watched, victims))
        now = time.monotonic()
        if killed:
            self.kills += len(killed)
            watched.dying, watched.dying_until, watched.helpless_since = killed, now + DYING_SECONDS, None
            watched.strikes += 1
            watched.unseen.until = 0.0
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


def _look_at(watched: Watched) -> Look:
    if watched.reading is not None:
        try:
            return by_group(watched.reading, watched.spec, watched.roots, watched.most)
        except (OSError, ValueError):
            watched.reading = None  # the group has gone, and the sandbox goes
    return by_walk(watched.unseen, watched.spec, watched.roots, watched.most)


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
