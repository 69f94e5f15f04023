"""Tells an agent when the kernel kills one of its processes at the wall of its control group, and counts that."""

from __future__ import annotations

import logging
import os
import select
from dataclasses import dataclass

from prorl_celery.node.keeper.loop import Loop, Timer
from prorl_celery.node.keeper.process import SandboxProcess
from prorl_celery.node.keeper.terminal import tell
from prorl_celery.sandbox.cgroups.readings import MemoryReading

log = logging.getLogger(__name__)

COUNT_SECONDS = 0.25
"""v1 tells before it kills; the count is right a moment later. Further alarms until then are of the same kill."""


@dataclass(slots=True)
class _Alarm:
    descriptor: int
    tells_before: bool
    reading: MemoryReading
    process: SandboxProcess
    mib: int
    kills: int = 0
    counting: Timer | None = None


class Alarms:
    """One descriptor for each sandbox in a group."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._alarms: dict[str, _Alarm] = {}
        self.kills = 0

    def listen(self, name: str, reading: MemoryReading, process: SandboxProcess, mib: int) -> None:
        """Begin with a sandbox whose memory is `mib`."""
        try:
            descriptor, tells_before = reading.alarm()
        except OSError as error:
            log.warning("sandbox %s: the kernel will not tell when it kills for memory: %s", name, error)
            return
        alarm = self._alarms[name] = _Alarm(descriptor, tells_before, reading, process, mib)
        events = select.EPOLLIN if tells_before else select.EPOLLPRI
        self._loop.watch(descriptor, lambda: self._heard(alarm), events)

    def forget(self, name: str) -> None:
        """The sandbox is gone. Idempotent."""
        alarm = self._alarms.pop(name, None)
        if alarm is None:
            return
        if alarm.counting is not None:
            alarm.counting.cancel()
        self._count(alarm)
        self._loop.unwatch(alarm.descriptor)
        os.close(alarm.descriptor)

    def _heard(self, alarm: _Alarm) -> None:
        try:
            # What was read is not what counts; it makes the descriptor quiet until the next time.
            if alarm.tells_before:
                os.read(alarm.descriptor, 8)
            else:
                os.pread(alarm.descriptor, 4096, 0)
        except OSError:  # the group has gone
            self._loop.unwatch(alarm.descriptor)
            return
        if alarm.tells_before and alarm.counting is None:
            self._tell(alarm)
            alarm.counting = self._loop.after(COUNT_SECONDS, lambda: self._count(alarm))
        elif not alarm.tells_before:
            before = self.kills
            self._count(alarm)
            if self.kills > before:
                self._tell(alarm)

    def _count(self, alarm: _Alarm) -> None:
        """Add what the kernel has killed since it was last asked."""
        alarm.counting = None
        try:
            kills = alarm.reading.kills()
        except OSError:
            return
        self.kills += kills - alarm.kills
        alarm.kills = kills

    def _tell(self, alarm: _Alarm) -> None:
        tell(alarm.process, f"killed a process: over the sandbox's memory of {alarm.mib} MiB")
