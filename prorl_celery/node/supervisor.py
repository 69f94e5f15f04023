"""The process that owns a service's other processes: starts them, restarts what dies, stops all of it.

Given `Unit`s (what to run, after what, how to stop it), `Supervisor.run` returns when it was told to stop and
nothing is left. It is one thread that waits by poll for signals (the death of a child is one) and for the
next deadline. It never blocks on a child: whether a unit is ready is found out by a probe, a forked child of
its own.

    unit waits -> started -> [probe] -> ready -> dies -> waits (back-off) -> ...

Stop: phases in rising order, each told by signal, each with its grace, then killed. A second signal cuts
every grace to one second. If the supervisor itself is killed, the kernel ends its children
(`children.launch`).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.node import prctl
from prorl_celery.node.children import Call, Child, Start, launch
from prorl_celery.node.orphans import kill_orphans_of
from prorl_celery.node.signals import SignalPipe

BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 10.0
HEALTHY_S = 60.0
"""A child that lived this long is forgiven its earlier deaths."""
HURRY_S = 1.0
LAST_WAIT_S = 5.0
"""How long we wait for what was killed to be gone (a process in the kernel cannot be killed)."""
LONGEST_POLL_S = 60.0
ORPHANS_S = 10.0
"""After a unit's death orphans are ended for so long: nobody can tell whose one was, and none of ours is meant."""

log = logging.getLogger("prorl.supervisor")


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
    replaces: tuple[str, ...] = ()
    """Units that are worthless when this one dies: they are told to stop and replaced by fresh ones."""
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    grace_seconds: float = 5.0
    stop_phase: int = 0
    log: Path | None = None


@dataclass(slots=True)
class _Slot:
    unit: Unit
    child: Child | None = None
    probe: Child | None = None
    ready: bool = False
    done: bool = False
    failures: int = 0
    due: float = 0.0


class Supervisor:
    """Runs units until SIGTERM, SIGINT or SIGHUP. To be made and run in a process without threads."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._slots = {unit.name: _Slot(unit) for unit in units}
        for unit in units:
            if unknown := {*unit.after, *unit.replaces} - set(self._slots):
                raise ValueError(f"unit {unit.name} names units that are not there: {sorted(unknown)}")
        self._alive: dict[int, tuple[_Slot, Child]] = {}
        self._phases: list[int] | None = None
        self._hurry = False
        self._exit_code = 0
        self._end_by: float | None = None
        self._orphans_until = 0.0

    def run(self) -> int:
        """Supervise. Returns 0, or 1 when a vital unit failed or something could not be ended."""
        stops = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
            stops.append(signal.SIGHUP)
        prctl.adopt_orphans()
        gc.collect()
        gc.freeze()  # or each fork's first collection would copy every page it shares with us
        with SignalPipe(signal.SIGCHLD, *stops) as self._signals:
            while not self._finished():
                self._start_what_is_due()
                for signum in self._signals.wait(self._seconds_to_next_deadline()):
                    if signum in stops:
                        self._stop_or_hurry(f"told to stop ({signum.name})")
                self._reap()
                self._keep_deadlines()
                self._advance_stop()
        gc.unfreeze()
        return self._exit_code

    # Starting

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        for slot in self._slots.values():
            waits = slot.child is not None or slot.done or self._phases is not None or slot.due > now
            if waits or not all(self._slots[name].ready for name in slot.unit.after):
                continue
            try:
                self._start(slot)
            except OSError as error:  # no process, no file left: that may pass
                log.warning("%s cannot be started: %s; again in %.1f s", slot.unit.name, error, self._put_off(slot))

    def _start(self, slot: _Slot) -> None:
        unit = slot.unit
        slot.child = self._launch(slot, unit.start(), unit.name)
        if unit.probe is None:
            slot.ready = not unit.once
            return
        try:
            slot.probe = self._launch(slot, Call(_run_probe, (unit.probe,)), f"{unit.name}?")
        except OSError:
            slot.child.kill()
            raise

    def _launch(self, slot: _Slot, start: Start, name: str) -> Child:
        held = [child.stdin for _, child in self._alive.values() if child.stdin is not None]
        child = launch(
            start,
            name=name,
            death_signal=slot.unit.death_signal,
            log=slot.unit.log,
            close=(*self._signals.descriptors, *held),
        )
        self._alive[child.pid] = (slot, child)
        return child

    # Deaths

    def _reap(self) -> None:
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
                known[1].close_stdin()
                if known[1] is not known[0].probe:
                    self._orphans_until = time.monotonic() + ORPHANS_S
                self._ended(*known, os.waitstatus_to_exitcode(status))
        # A dead unit's descendants come to us one generation after the other, each at the death of the one before.
        if time.monotonic() < self._orphans_until:
            kill_orphans_of(os.getpid(), known=self._alive)

    def _ended(self, slot: _Slot, child: Child, code: int) -> None:
        if child is slot.probe:
            slot.probe = None
            slot.ready = code == 0 and slot.child is not None
            if code != 0 and slot.child is not None and self._phases is None:
                log.warning("%s did not become ready", slot.unit.name)
                slot.child.kill()
        elif child is slot.child:
            slot.child, slot.ready = None, False
            if slot.probe is not None:
                slot.probe.kill()
                slot.probe = None
            if slot.unit.once:
                self._ended_for_good(slot, code)
            elif self._phases is None:
                self._plan_restart(slot, child, code)

    def _ended_for_good(self, slot: _Slot, code: int) -> None:
        slot.done, slot.ready = True, code == 0
        if code != 0 and self._phases is None:
            log.warning("%s failed (%s)", slot.unit.name, _how(code))
            if slot.unit.vital:
                self._exit_code = 1
                self._stop_or_hurry(f"{slot.unit.name} failed")

    def _plan_restart(self, slot: _Slot, child: Child, code: int) -> None:
        if time.monotonic() - child.started_at >= HEALTHY_S:
            slot.failures = 0
        delay = self._put_off(slot)
        log.warning("%s (pid %d) ended: %s; again in %.1f s", slot.unit.name, child.pid, _how(code), delay)
        for name in slot.unit.replaces:
            self._retire(self._slots[name])

    def _put_off(self, slot: _Slot) -> float:
        """Decide when the slot is started again: in how many seconds."""
        delay = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2 ** (slot.failures - 1)) if slot.failures else 0.0
        slot.failures = min(slot.failures + 1, 32)
        slot.due = time.monotonic() + delay
        return delay

    def _retire(self, slot: _Slot) -> None:
        """Let the slot's child finish in the background; the slot is free for a fresh one at once."""
        if slot.child is not None:
            slot.child.tell(slot.unit.stop_signal, kill_at=time.monotonic() + slot.unit.grace_seconds)
        slot.child, slot.ready, slot.due = None, False, 0.0

    # Stopping

    def _stop_or_hurry(self, why: str) -> None:
        if self._phases is None:
            log.info("stopping: %s", why)
            self._phases = sorted({slot.unit.stop_phase for slot in self._slots.values()})
            for slot in self._slots.values():
                if slot.probe is not None:
                    slot.probe.kill()
        elif not self._hurry:
            log.info("stopping at once: %s", why)
            self._hurry = True
            soon = time.monotonic() + HURRY_S
            for _, child in self._alive.values():
                if child.kill_at is not None:
                    child.kill_at = min(child.kill_at, soon)

    def _advance_stop(self) -> None:
        while self._phases:
            members = [pair for pair in self._alive.values() if pair[0].unit.stop_phase == self._phases[0]]
            if not members:
                self._phases.pop(0)
                continue
            for slot, child in members:
                if not child.told:
                    grace = HURRY_S if self._hurry else slot.unit.grace_seconds
                    child.tell(slot.unit.stop_signal, kill_at=time.monotonic() + grace)
            return

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        for pid, (slot, child) in list(self._alive.items()):
            if child.kill_at is None or child.kill_at > now:
                continue
            if not child.killed:
                log.warning("%s (pid %d) did not stop in time: killed", slot.unit.name, pid)
                child.kill()
                child.kill_at = now + LAST_WAIT_S
            else:
                log.error("%s (pid %d) cannot be killed", slot.unit.name, pid)
                self._exit_code = 1
                del self._alive[pid]

    def _finished(self) -> bool:
        if self._phases is None or self._phases or self._alive:
            return False
        now = time.monotonic()
        self._end_by = now + LAST_WAIT_S if self._end_by is None else self._end_by
        left = kill_orphans_of(os.getpid(), known=self._alive)
        if left and now >= self._end_by:
            log.error("processes that cannot be ended: %s", left)
            self._exit_code = 1
            return True
        return not left

    def _seconds_to_next_deadline(self) -> float:
        deadlines = [child.kill_at for _, child in self._alive.values() if child.kill_at is not None]
        if self._phases is None:
            deadlines += [slot.due for slot in self._slots.values() if self._waits_for_time(slot)]
        if self._end_by is not None:
            deadlines.append(self._end_by)
        return max(0.0, min([d - time.monotonic() for d in deadlines], default=LONGEST_POLL_S))

    def _waits_for_time(self, slot: _Slot) -> bool:
        return slot.child is None and not slot.done and all(self._slots[name].ready for name in slot.unit.after)


def _run_probe(probe: Callable[[], bool]) -> int:
    return 0 if probe() else 1


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
