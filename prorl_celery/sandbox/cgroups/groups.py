"""One keeper's control groups: one for each sandbox, below one that is named after the keeper (`sandbox.owner`).

    PLACE/prorl-keeper-PID-START-NAMESPACE-UID/SANDBOX_ID        in each controller's tree, or in v2's one

Whoever finds such a group can tell whose it is and whether its keeper lives. All calls but the readings may block for
a while (the kernel moves a process only between two moments of rest), so the keeper has a child make them.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prorl_celery.sandbox import owner
from prorl_celery.sandbox.cgroups.places import Places

PERIOD_US = 100_000
"""The CPU quota is per this long."""
LEAST_QUOTA_US = 1000
NEEDED = ("memory.limit_in_bytes", "memory.max")
"""Limits without which a group is of no use. Swap is not on every machine, and a controller not in every tree."""
MOVES = 20
"""Rounds of moving processes one group down; what forks meanwhile is there in the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox may have. JSON both ways."""

    memory_bytes: int
    processes: int
    cpus: float = 0.0
    """Cores; 0 is no limit."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def settings(self, version: int) -> list[tuple[str, str, str]]:
        """Controller, file and value."""
        quota = max(LEAST_QUOTA_US, round(self.cpus * PERIOD_US))
        if version == 1:
            return [
                ("memory", "memory.limit_in_bytes", str(self.memory_bytes)),
                ("memory", "memory.memsw.limit_in_bytes", str(self.memory_bytes)),
                ("pids", "pids.max", str(self.processes)),
                *([("cpu", "cpu.cfs_period_us", str(PERIOD_US))] if self.cpus else []),
                *([("cpu", "cpu.cfs_quota_us", str(quota))] if self.cpus else []),
            ]
        return [
            ("memory", "memory.max", str(self.memory_bytes)),
            ("memory", "memory.swap.max", "0"),
            ("pids", "pids.max", str(self.processes)),
            *([("cpu", "cpu.max", f"{quota} {PERIOD_US}")] if self.cpus else []),
        ]


class Groups:
    """The groups of the process that makes this object, or of another by its name (`left`)."""

    def __init__(self, places: Places, name: str | None = None) -> None:
        self._places = places
        self.name = name or f"prorl-keeper-{owner.this_process()}"
        self._roots = {controller: folder / self.name for controller, folder in places.folders.items()}

    @property
    def version(self) -> int:
        return self._places.version

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(self._places.folders)

    def make(self) -> None:
        """Make the keeper's own group, in which the sandboxes' will be. Raises `OSError`; then nothing is left."""
        try:
            if self.version == 2:
                self._settle()
            for root in self._trees():
                root.mkdir(exist_ok=True)
            if self.version == 2:
                _enable(self._roots["memory"], self.controllers)
        except OSError:
            self.remove()
            raise

    def place(self, name: str, limits: Limits, pid: int) -> None:
        """Make a sandbox's group, or take the one that is there, and put a process into it: what that one starts from
        now on is in it too. Raises `OSError`.
        """
        settings = [each for each in limits.settings(self.version) if each[0] in self._roots]
        folders = {self._roots[controller] / name for controller, *_ in settings}
        for folder in folders:
            folder.mkdir(exist_ok=True)
        for controller, file, value in settings:
            try:
                _write(self._roots[controller] / name / file, value)
            except OSError:
                if file in NEEDED:
                    raise
        for folder in folders:
            _write(folder / "cgroup.procs", str(pid))

    def memory(self, name: str) -> Path:
        """The folder with a sandbox's memory readings."""
        return self._roots["memory"] / name

    def names(self) -> list[str]:
        """Of the sandboxes that have a group."""
        return sorted({folder.name for root in self._trees() for folder in subgroups(root)})

    def end(self, name: str) -> bool:
        """Kill what is in a sandbox's group and remove it; False while something is on its way out."""
        return all([end(root / name) for root in self._trees()])

    def remove(self) -> bool:
        """End every sandbox's group and the keeper's own; False while something is on its way out."""
        return all([end_with_subgroups(root) for root in self._trees()])

    def _trees(self) -> set[Path]:
        return set(self._roots.values())

    def _settle(self) -> None:
        """Empty a v2 group of ours of processes, and have it give its controllers to the groups below."""
        base, leaf = self._places.folders["memory"], self._places.leaf
        if leaf is not None:
            leaf.mkdir(exist_ok=True)
            for _ in range(MOVES):
                inhabitants = (base / "cgroup.procs").read_text(encoding="ascii").split()
                if not inhabitants:
                    break
                for pid in inhabitants:
                    with suppress(ProcessLookupError):
                        _write(leaf / "cgroup.procs", pid)
        _enable(base, self.controllers)


def _enable(folder: Path, controllers: tuple[str, ...]) -> None:
    for controller in controllers:
        try:
            _write(folder / "cgroup.subtree_control", f"+{controller}")
        except OSError:
            if controller == "memory":
                raise


def _write(path: Path, text: str) -> None:
    """One write, into a file that is there. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def subgroups(folder: Path) -> list[Path]:
    """The groups right below one; none where there is no such group."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def end_with_subgroups(folder: Path) -> bool:
    """`end` for a group and those right below it."""
    return all([end(each) for each in [*subgroups(folder), folder]])


def end(folder: Path) -> bool:
    """Kill what is in a group and remove it; False while something is on its way out. True where there is none."""
    with suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
