"""A supervisor's living children: started, reaped, and killed when they overstay a deadline or fall silent."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterable, Iterator

from prorl_celery.node.children import Child, Start, launch
from prorl_celery.node.orphans import kill_orphans_of
from prorl_celery.node.units import Slot

LAST_WAIT_S = 5.0
"""How long we wait for what was killed to be gone (a process in the kernel cannot be killed)."""
ORPHANS_S = 10.0
"""After a unit's death orphans are ended for so long: nobody can tell whose one was, and none of ours is meant."""
RETIRED_MOST = 4
"""Of one unit so many may finish by themselves beside a fresh child; the oldest is told to stop when there are more."""

log = logging.getLogger("prorl.supervisor")


class Crew:
    """All children by pid, each with its slot: a unit's own, its probe, or one that finishes beside a fresh one."""

    def __init__(self, silence_seconds: float) -> None:
        self._silence = silence_seconds
        self._alive: dict[int, tuple[Slot, Child]] = {}
        self._orphans_until = 0.0
        self.unkillable = False
        """Whether some child could not be ended."""

    def __iter__(self) -> Iterator[tuple[Slot, Child]]:
        return iter(list(self._alive.values()))

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, child: Child) -> bool:
        return child.pid in self._alive

    def find(self, pid: int) -> tuple[Slot, Child] | None:
        """The child of that pid, and its slot."""
        return self._alive.get(pid)

    def adopt(self, slot: Slot, child: Child) -> None:
        """Take charge of a child that a supervisor before us in this process started."""
        self._alive[child.pid] = (slot, child)

    def launch(self, slot: Slot, start: Start, name: str, close: Iterable[int]) -> Child:
        """Start a child of a slot's; it keeps none of the descriptors `close`. Raises as `children.launch`."""
        held = [child.stdin for _, child in self if child.stdin is not None]
        unit = slot.unit
        child = launch(start, name=name, death_signal=unit.death_signal, log=unit.log, close=(*close, *held))
        self._alive[child.pid] = (slot, child)
        return child

    def retire(self, slot: Slot) -> Child | None:
        """Let the slot's child finish by itself while a fresh one may be started. It has no deadline while it beats."""
        child = slot.vacate()
        if child is None:
            return None
        child.retired = True
        others = [one for place, one in self if place is slot and one.retired and not one.told]
        for oldest in others[:-RETIRED_MOST]:
            self.dismiss(slot, oldest)
        return child

    def dismiss(self, slot: Slot, child: Child) -> None:
        """Tell a child to end for a fresh one. It is killed when its grace is over; one that beats has yet as long as
        it might have been silent.
        """
        grace = slot.unit.grace_seconds + (self._silence if child.beaten_at is not None else 0.0)
        child.tell(slot.unit.replace_signal, kill_at=time.monotonic() + grace)

    def reap(self) -> Iterator[tuple[Slot, Child, int]]:
        """The children that have ended since the last time, with their exit codes (negative: the signal)."""
        while True:
            try:
                # Looked at before it is reaped: until then its process group cannot be anybody else's.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None:
                break
            known = self._alive.pop(ended.si_pid, None)
            if known is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if known is not None:
                slot, child = known
                child.close_stdin()
                if child is not slot.probe:
                    self._orphans_until = time.monotonic() + ORPHANS_S
                yield slot, child, os.waitstatus_to_exitcode(status)
        # A dead unit's descendants come to us one generation after the other, each at the death of the one before.
        if time.monotonic() < self._orphans_until:
            self.kill_orphans()

    def kill_orphans(self) -> list[int]:
        """End what children of ours have left to us; what there was."""
        return kill_orphans_of(os.getpid(), known=self._alive)

    def keep_deadlines(self) -> Iterator[tuple[Slot, Child, int]]:
        """Kill who overstays or is silent. Those that even then did not end are given up, and returned as ended."""
        now = time.monotonic()
        for slot, child in self:
            if not child.killed and self._silent_at(child) <= now:
                log.warning("%s (pid %d) has not beaten for %.0f s: killed", slot.unit.name, child.pid, self._silence)
                child.kill()
                child.kill_at = now + LAST_WAIT_S
            elif child.kill_at is None or child.kill_at > now:
                continue
            elif not child.killed:
                log.warning("%s (pid %d) did not stop in time: killed", slot.unit.name, child.pid)
                child.kill()
                child.kill_at = now + LAST_WAIT_S
            else:
                log.error("%s (pid %d) cannot be killed", slot.unit.name, child.pid)
                self.unkillable = True
                del self._alive[child.pid]
                yield slot, child, -signal.SIGKILL

    def excuse(self, seconds: float) -> None:
        """We ourselves were held up some time in these last seconds: nobody's silence counts for them."""
        for _, child in self:
            if child.beaten_at is not None:
                child.beaten_at += seconds

    def deadlines(self) -> list[float]:
        """When `keep_deadlines` may have something to do."""
        kills = [child.kill_at for _, child in self if child.kill_at is not None]
        return kills + [self._silent_at(child) for _, child in self if child.beaten_at is not None and not child.killed]

    def _silent_at(self, child: Child) -> float:
        """When it will have been silent for too long; never for one that does not beat."""
        return float("inf") if child.beaten_at is None else child.beaten_at + self._silence
