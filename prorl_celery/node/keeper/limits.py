"""What holds the keeper's sandboxes to their memory, processes and CPU, by what this machine allows.

A control group for each, where there may be one; the watchdog always. The limit of processes is RLIMIT_NPROC in the
sandbox's own user namespace (`init.sh`), and once more the group's.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prorl_celery.errors import SandboxUnavailable
from prorl_celery.node.keeper.alarms import Alarms
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.process import SandboxProcess
from prorl_celery.node.keeper.warden import Warden
from prorl_celery.node.keeper.watchdog import Watchdog
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.cgroups import places
from prorl_celery.sandbox.cgroups.groups import Groups
from prorl_celery.sandbox.cgroups.left import remove_left_behind
from prorl_celery.sandbox.cgroups.readings import MemoryReading
from prorl_celery.sandbox.launch import CONTROL, Launch, User, sandbox_user
from prorl_celery.sandbox.limits import give_way, group_limits
from prorl_celery.sandbox.memory import can_walk
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

CLEARINGS = 20
CLEAR_SECONDS = 0.5
"""What is left of dead keepers ends in milliseconds, unless the kernel holds it."""
GO = b"go\n"
WAIT = 'while read -r -u "$1" line; do [[ $line == go ]] && { shift; exec "$@"; }; done; exit 97'
"""Runs what follows when it is told to on the control channel: once it is in its group."""


class Limits:
    """Raises nothing: what cannot be had is logged, and told by `status`."""

    def __init__(self, settings: Settings, loop: Loop, end: Callable[[str], None]) -> None:
        """`end` is called with the name of a sandbox that cannot be brought under its memory."""
        self._loop = loop
        self._groups = _make_groups(settings)
        self._warden = None if self._groups is None else Warden(self._groups, loop, self._lost)
        self._watchdog = Watchdog(loop, _user(settings), end) if can_walk() or self._groups is not None else None
        self._alarms = Alarms(loop)
        self._remove_left_behind(CLEARINGS)

    @property
    def pids(self) -> set[int]:
        """Children of the keeper that belong here."""
        own = set() if self._warden is None else {self._warden.pid}
        return own | (self._watchdog.pids if self._watchdog is not None else set())

    def status(self) -> dict[str, Any]:
        """What is in force, and how many processes it has cost."""
        groups = None if self._groups is None or self._warden is None else self._groups
        kind = "" if groups is None else f"cgroup v{groups.version}"
        return {
            "memory_limit": kind or ("watchdog" if self._watchdog is not None else "each process"),
            "cpu_limit": kind if groups is not None and "cpu" in groups.controllers else "none",
            "memory_kills": self._alarms.kills + (self._watchdog.kills if self._watchdog is not None else 0),
        }

    def hold(self, launch: Launch) -> Launch:
        """The launch, waiting for its group where there will be one."""
        if self._warden is None:
            return launch
        # -p: the environment is the sandbox's and must not make this bash read files.
        return dataclasses.replace(launch, argv=("bash", "-p", "-c", WAIT, "prorl-wait", CONTROL, *launch.argv))

    def enter(self, name: str, spec: SandboxSpec) -> None:
        """Put the calling process under a sandbox's limits: a child of the keeper's that starts an instance. Blocks."""
        give_way()
        if self._groups is not None:
            with suppress(OSError):  # what the agent runs is put into the group by the warden, who tells
                self._groups.place(name, group_limits(spec), os.getpid())

    def begin(self, name: str, spec: SandboxSpec, process: SandboxProcess, inner_pid: int | None = None) -> None:
        """A sandbox's outer process was started. `inner_pid`: the first process of an instance beside it."""
        if self._watchdog is not None:
            self._watchdog.watch(name, spec, process, inner_pid)
        if self._warden is not None:
            self._warden.place(
                name, group_limits(spec), process.pid, lambda error: self._placed(name, spec, process, error)
            )

    def gone(self, name: str) -> None:
        """A sandbox and all its processes have ended. Idempotent."""
        if self._watchdog is not None:
            self._watchdog.forget(name)
        self._alarms.forget(name)
        if self._warden is not None:
            self._warden.end(name)

    def close(self) -> None:
        """Have the groups removed; the last thing a keeper does."""
        if self._warden is not None:
            self._warden.close()

    def _placed(self, name: str, spec: SandboxSpec, process: SandboxProcess, error: str | None) -> None:
        if not process.alive:
            return
        if error is not None:
            log.error("sandbox %s has no control group, and is watched without: %s", name, error)
        elif self._groups is not None:
            reading = MemoryReading(self._groups.memory(name), self._groups.version)
            if self._watchdog is not None:
                self._watchdog.read_from(name, reading)
            self._alarms.listen(name, reading, process, spec.memory_bytes >> 20)
        with suppress(OSError):  # it has just ended
            process.control.send(GO)

    def _remove_left_behind(self, times: int) -> None:
        """The groups of dead keepers, and again after a moment where processes of theirs have yet to end."""
        if remove_left_behind() and times > 1:
            self._loop.after(CLEAR_SECONDS, lambda: self._remove_left_behind(times - 1))

    def _lost(self) -> None:
        log.error("the child that works on control groups has gone: sandboxes are held by the watchdog alone")
        self._warden = None


def _user(settings: Settings) -> User | None:
    try:
        return sandbox_user(settings)
    except SandboxUnavailable:  # told at every start; there will be nothing to watch
        return None


def _make_groups(settings: Settings) -> Groups | None:
    """The keeper's own group; None where there can be none."""
    if settings.sandbox_cgroups == "off":
        return None
    found = places.find()
    if isinstance(found, places.Nowhere):
        log.info("no control groups for sandboxes: %s", found.why)
        return None
    groups = Groups(found)
    try:
        groups.make()
    except OSError as error:
        log.warning("no control groups for sandboxes: %s", error)
        return None
    return groups
