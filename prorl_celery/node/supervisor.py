"""The process that owns a service's other processes: starts them, restarts what dies, stops all of it.

Given `Unit`s (what to run, after what, how to stop it), `Supervisor.run` returns when it was told to stop and
nothing is left. It is one thread that waits by poll for signals (the death of a child is one), for what its
children ask and for the next deadline. It never blocks on a child: whether a unit is ready is found out by a
probe, a forked child of its own.

    unit waits -> started -> [probe] -> ready -> dies -> waits (back-off) -> ...
                                          '-> asks to retire: finishes beside a fresh one

A child that beats (`node.requests`) and then falls silent is killed. SIGUSR1 restarts all without a pause
(`node.rolling`); SIGTERM, SIGINT and SIGHUP stop all (`node.stopping`), the second time at once. SIGHUP does not where
it was ignored from the start, as under nohup. If the supervisor itself is killed, the kernel ends its children
(`children.launch`).
"""

from __future__ import annotations

import gc
import logging
import signal
import time
from collections.abc import Callable, Sequence

from prorl_celery.node import prctl
from prorl_celery.node.children import OWN_SIGNALS, Call, Child, Start
from prorl_celery.node.crew import Crew
from prorl_celery.node.renewal import Renewal, adopt
from prorl_celery.node.requests import BEAT, RETIRE, Requests
from prorl_celery.node.rolling import RollingRestart
from prorl_celery.node.signals import SignalPipe
from prorl_celery.node.stopping import Stop
from prorl_celery.node.units import Slot, Unit

__all__ = ["Supervisor", "Unit"]

LONGEST_POLL_S = 60.0
HELD_UP_S = 1.0
"""When a wait took so much longer than it should, this process was stopped or starved, and not its children silent."""
SILENCE_S = 60.0

log = logging.getLogger("prorl.supervisor")


class Supervisor:
    """Runs units until SIGTERM, SIGINT or SIGHUP. To be made and run in a process without threads.

    `requests` is where its children ask; `renewal` makes a rolling restart possible.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        *,
        requests: Requests | None = None,
        silence_seconds: float = SILENCE_S,
        renewal: Renewal | None = None,
    ) -> None:
        self._slots = {unit.name: Slot(unit) for unit in units}
        for unit in units:
            if unknown := {*unit.after, *unit.replaces} - set(self._slots):
                raise ValueError(f"unit {unit.name} names units that are not there: {sorted(unknown)}")
        self._requests = requests or Requests()
        self._crew = Crew(silence_seconds)
        self._stop = Stop(self._slots.values(), self._crew)
        self._renewal = renewal
        self._restart: RollingRestart | None = None
        self._exit_code = 0

    def run(self) -> int:
        """Supervise. Returns 0, or 1 when a vital unit failed or something could not be ended."""
        stops = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
            stops.append(signal.SIGHUP)
        others = [signal.SIGCHLD] if self._renewal is None else [signal.SIGCHLD, signal.SIGUSR1]
        prctl.adopt_orphans()
        gc.collect()
        gc.freeze()  # or each fork's first collection would copy every page it shares with us
        with SignalPipe(*others, *stops) as self._signals:
            self._signals.watch(self._requests.descriptor)
            self._begin()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, OWN_SIGNALS)  # where we are a program executed anew
            while not self._stop.over():
                self._start_what_is_due()
                for signum in self._wait():
                    if signum in stops:
                        self._stop.begin_or_hurry(f"told to stop ({signum.name})")
                    elif signum == signal.SIGUSR1 and self._restart is not None:
                        self._restart.ask()
                self._hear()
                for slot, child, code in (*self._crew.reap(), *self._crew.keep_deadlines()):
                    self._ended(slot, child, code)
                if self._restart is not None and not self._stop.begun:
                    self._restart.advance()
                self._stop.advance()
        gc.unfreeze()
        return 1 if self._crew.unkillable else self._exit_code

    def _begin(self) -> None:
        if self._renewal is None:
            return
        if self._renewal.estate is not None:
            adopt(self._renewal.estate, self._slots, self._crew)
        self._restart = RollingRestart(self._renewal, self._slots, self._crew, self._requests, self._launch)

    def _wait(self) -> list[signal.Signals]:
        """The signals that have come by the next deadline."""
        timeout = self._seconds_to_next_deadline()
        before = time.monotonic()
        signals = self._signals.wait(timeout)
        waited = time.monotonic() - before
        if waited > timeout + HELD_UP_S:
            self._crew.excuse(waited)
        return signals

    # Starting

    def _start_what_is_due(self) -> None:
        if self._stop.begun:
            return
        now = time.monotonic()
        for slot in self._slots.values():
            if slot.due > now or not self._waits_for_time(slot):
                continue
            try:
                self._start(slot)
            except OSError as error:  # no process, no file left: that may pass
                log.warning("%s cannot be started: %s; again in %.1f s", slot.unit.name, error, slot.put_off())

    def _start(self, slot: Slot) -> None:
        unit = slot.unit
        slot.child = self._launch(slot)
        if unit.probe is None:
            slot.ready = not unit.once
            return
        try:
            slot.probe = self._launch(slot, Call(_run_probe, (unit.probe,)), f"{unit.name}?")
        except OSError:
            slot.child.kill()
            raise

    def _launch(self, slot: Slot, start: Start | None = None, name: str = "") -> Child:
        close = (*self._signals.descriptors, self._requests.descriptor)
        return self._crew.launch(slot, start or slot.unit.start(), name or slot.unit.name, close)

    # What children ask

    def _hear(self) -> None:
        for request in self._requests.read():
            known = self._crew.find(request.pid)
            if known is None:  # a child of a child, or one that has ended
                continue
            slot, child = known
            if request.op == BEAT:
                child.beaten_at = time.monotonic()
            elif request.op == RETIRE:
                if child is slot.child and not self._stop.begun:
                    log.warning("%s (pid %d) takes no more jobs: a fresh one beside it", slot.unit.name, child.pid)
                    self._crew.retire(slot)
                    slot.put_off_after(child)
            else:
                for other in self._slots.values():
                    other.wanted |= other.unit.asked_by == request.op

    # Deaths

    def _ended(self, slot: Slot, child: Child, code: int) -> None:
        if self._restart is not None and self._restart.ended(slot, code):
            return
        if child is slot.probe:
            slot.probe = None
            slot.ready = code == 0 and slot.child is not None
            if code != 0 and slot.child is not None and not self._stop.begun:
                log.warning("%s did not become ready", slot.unit.name)
                slot.child.kill()
        elif child is slot.child:
            slot.child, slot.ready, slot.wanted = None, False, False
            if slot.probe is not None:
                slot.probe.kill()
                slot.probe = None
            if slot.unit.once:
                self._ended_for_good(slot, code)
            elif slot.unit.asked_by and code == 0:
                slot.failures = 0
            elif not self._stop.begun:
                self._plan_restart(slot, child, code)

    def _ended_for_good(self, slot: Slot, code: int) -> None:
        slot.done, slot.ready = True, code == 0
        if code != 0 and not self._stop.begun:
            log.warning("%s failed (%s)", slot.unit.name, _how(code))
            if slot.unit.vital:
                self._exit_code = 1
                self._stop.begin_or_hurry(f"{slot.unit.name} failed")

    def _plan_restart(self, slot: Slot, child: Child, code: int) -> None:
        again = f"in {slot.put_off_after(child):.1f} s" + (" when asked for" if slot.unit.asked_by else "")
        log.warning("%s (pid %d) ended: %s; again %s", slot.unit.name, child.pid, _how(code), again)
        for name in slot.unit.replaces:
            other = self._slots[name]
            if (worthless := self._crew.retire(other)) is not None:
                self._crew.dismiss(other, worthless)

    def _seconds_to_next_deadline(self) -> float:
        deadlines = [self._stop.deadline, *self._crew.deadlines()]
        if not self._stop.begun:
            deadlines += [slot.due for slot in self._slots.values() if self._waits_for_time(slot)]
            if self._restart is not None:
                deadlines.append(self._restart.deadline)
        return max(0.0, min(LONGEST_POLL_S, *(deadline - time.monotonic() for deadline in deadlines)))

    def _waits_for_time(self, slot: Slot) -> bool:
        return not slot.idle and all(self._slots[name].ready for name in slot.unit.after)


def _run_probe(probe: Callable[[], bool]) -> int:
    return 0 if probe() else 1


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
