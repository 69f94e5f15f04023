"""Spare sandboxes: a few are started while nobody waits, and handed out to whoever asks for one of that kind.

A kind is a specification without its owner. What was asked for lately is expected to be asked for again: the spares
to have are of the kinds of the last few starts, as many of each, leaving out a kind that was asked for only once. A
spare is started when no start has come for a moment, one at a time, and ends when nobody has taken it for a while.

It was never used: its shell's first prompt still waits in its terminal, its kernel has run no cell, and its life begins
when it is taken. Until then it is nobody's: it holds no place, and no listing shows it. It costs a megabyte of memory,
with a kernel some thirty.

Only bubblewrap's: an instance of Singularity is named after its job when it starts.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.loop import Loop, Timer
from prorl_celery.sandbox.base import SandboxSpec

if TYPE_CHECKING:
    from prorl_celery.node.keeper.entry import Entry, Started
    from prorl_celery.node.keeper.process import SandboxProcess

log = logging.getLogger(__name__)

SPARE = "spare"
"""The purpose of a sandbox that nobody has taken."""

QUIET_SECONDS = 0.1
"""How long no start must have come before a spare is started: those that are waited for need the processor."""

KERNEL_QUIET_SECONDS = 1.0
"""The same after a spare with a kernel, whose start keeps a processor busy for half a second."""

IDLE_SECONDS = 600.0
"""A spare that nobody takes for so long ends, and gives its memory back."""

LATELY = 64
"""Starts that are looked back on for whether a kind is asked for again."""


class Spares:
    """Up to `most` of them. `start` and `stop` are those of `Sandboxes`."""

    def __init__(
        self, most: int, loop: Loop, start: Callable[[SandboxSpec, Started], Entry], stop: Callable[[str], None]
    ) -> None:
        self._most = most
        self._loop = loop
        self._start = start
        self._stop = stop
        self._lately: deque[SandboxSpec] = deque(maxlen=LATELY)
        self._wanted: deque[SandboxSpec] = deque(maxlen=most)
        self._starting: list[Entry] = []
        self._ready: list[Entry] = []
        self._terminals: dict[str, int] = {}
        self._timer: Timer | None = None
        self.taken = 0

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def missing(self) -> int:
        """How many are expected to be asked for and are not ready."""
        return len(_without(self._wanted, [entry.spec for entry in self._ready]))

    def take(self, spec: SandboxSpec) -> Entry | None:
        """A spare of the kind that a start asks for, the oldest; it is the asker's now. None where there is none."""
        kind = _kind_of(spec)
        if kind in self._lately:
            self._wanted.append(kind)
        self._lately.append(kind)
        self._wait_for_quiet()
        entry = next((e for e in self._ready if e.spec == kind and not e.ending and _lives(e)), None)
        if entry is not None:
            self.gone(entry)
            self.taken += 1
        return entry

    def gone(self, entry: Entry) -> None:
        """A sandbox is no spare any more, if it was one."""
        self._starting = [other for other in self._starting if other is not entry]
        self._ready = [other for other in self._ready if other is not entry]
        self._let_go(entry)

    def close(self) -> None:
        """Start no more."""
        self._wanted.clear()

    def _wait_for_quiet(self, seconds: float = QUIET_SECONDS) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(seconds, self._refill)

    def _refill(self) -> None:
        """Start one that is missing, in the place of one that is not wanted any more where all places are taken."""
        entries = self._starting + self._ready
        missing = _without(self._wanted, [entry.spec for entry in entries])
        if not missing:
            return
        if len(entries) >= self._most:
            kind = _without([entry.spec for entry in entries], self._wanted)[0]
            unwanted = next(entry for entry in entries if entry.spec == kind)
            self.gone(unwanted)
            self._stop(unwanted.sandbox_id)
        try:
            self._starting.append(self._start(missing[0], self._started))
        except SandboxError as error:
            log.warning("a spare sandbox could not be started: %s", error)

    def _started(self, entry: Entry, error: SandboxError | None) -> None:
        if error is not None:
            log.warning("a spare sandbox could not be started: %s", error)
        elif entry in self._starting and entry.process is not None:
            self._await_prompt(entry, entry.process)

    def _await_prompt(self, entry: Entry, process: SandboxProcess) -> None:
        """It is ready when its shell has said something. Who came before would wait for a start all the same."""

        def prompted() -> None:
            self._let_go(entry)
            self._starting.remove(entry)
            self._ready.append(entry)
            if entry.spec.kernel:
                # Whoever takes it finds a kernel that lives, or else has one started.
                with suppress(OSError):  # it has ended
                    process.control.send(b"0 warm\n")
            self._wait_for_quiet(KERNEL_QUIET_SECONDS if entry.spec.kernel else QUIET_SECONDS)

        try:
            # A descriptor of its own, for the process may close its terminal before it is known to be gone.
            terminal = self._terminals[entry.sandbox_id] = os.dup(process.pty)
            self._loop.watch(terminal, prompted)
        except OSError as error:
            log.warning("a spare sandbox cannot be watched: %s", error)
            self._stop(entry.sandbox_id)

    def _let_go(self, entry: Entry) -> None:
        """Wait for its prompt no more."""
        terminal = self._terminals.pop(entry.sandbox_id, None)
        if terminal is not None:
            self._loop.unwatch(terminal)
            os.close(terminal)


def _lives(entry: Entry) -> bool:
    return entry.process is not None and entry.process.lives


def _without(kinds: Iterable[SandboxSpec], others: Iterable[SandboxSpec]) -> list[SandboxSpec]:
    """What is left of some kinds when each of the others has been taken from them once."""
    left = list(kinds)
    for other in others:
        if other in left:
            left.remove(other)
    return left


def _kind_of(spec: SandboxSpec) -> SandboxSpec:
    """The specification as a spare of its kind has it."""
    return replace(spec, job_id=SPARE, attempt=0, fence=0, purpose=SPARE, lifetime_seconds=IDLE_SECONDS)
