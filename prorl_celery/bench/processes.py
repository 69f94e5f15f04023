"""What a tree of processes uses, read from /proc: CPU seconds, PSS, RSS.

The CPU of processes that have ended is in their parents' sums as soon as these have waited for them. Those that end
with a sandbox's process namespace are waited for by nobody: what a sandbox's shell and its commands used is in the
tree's sum while the sandbox lives, and no longer (`prorl_celery.bench.kinds.cost.Meter` takes it before).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table. `cpu_s`: user and system time, that of ended and awaited children too."""

    pid: int
    parent: int
    name: str
    cpu_s: float


def table() -> dict[int, Process]:
    """All processes."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(*_GONE):
                found[int(entry.name)] = _parsed((entry / "stat").read_text(errors="replace"))
    return found


def _parsed(stat: str) -> Process:
    head, _, tail = stat.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    return Process(int(pid), int(fields[1]), name, sum(map(int, fields[11:15])) / _TICKS)


def tree(root: int) -> list[Process]:
    """A process and all its descendants."""
    processes = table()
    below: dict[int, list[int]] = defaultdict(list)
    for process in processes.values():
        below[process.parent].append(process.pid)
    pids = [root] if root in processes else []
    for pid in pids:
        pids += below[pid]
    return [processes[pid] for pid in pids]


def cpu_seconds(root: int) -> float:
    """CPU seconds that the tree has used so far."""
    return sum(process.cpu_s for process in tree(root))


def cpu_by_part(root: int) -> dict[str, float]:
    """CPU seconds of the root (`supervisor`) and of each child with all below, by the child's name less its number.

    The keeper's part holds the sandboxes'.
    """
    part_of: dict[int, str] = {}
    used: dict[str, float] = defaultdict(float)
    for process in tree(root):
        if process.pid == root:
            part = "supervisor"
        else:
            part = _part(process) if process.parent == root else part_of[process.parent]
        part_of[process.pid] = part
        used[part] += process.cpu_s
    return used


def _part(process: Process) -> str:
    with contextlib.suppress(*_GONE):
        if b"prorl_celery.node.keeper" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            return "keeper"
    return process.name.removeprefix("prorl-").rstrip("-0123456789")


def rss_bytes(pid: int) -> int:
    """Resident memory of one process. Raises FileNotFoundError."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pss_bytes(pid: int) -> int:
    """Proportional share of memory of one process. Raises FileNotFoundError, ProcessLookupError, PermissionError."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(slots=True)
class PeakPss:
    """The highest PSS seen of a tree, and what it was made of by process name, in bytes."""

    total: int = 0
    by_name: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    unreadable: int = 0
    """Processes that this user may not look at; with any of them the figure is no figure."""


@contextmanager
def peak_pss(root: int, every_seconds: float = 0.2) -> Iterator[PeakPss]:
    """Watch a tree's PSS for the time of the block. Reading it costs CPU: take no times meanwhile."""
    peak, over = PeakPss(), threading.Event()

    def watch() -> None:
        while not over.wait(every_seconds):
            _look(root, peak)

    thread = threading.Thread(target=watch, name="pss")
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _look(root: int, peak: PeakPss) -> None:
    by_name: dict[str, int] = defaultdict(int)
    for process in tree(root):
        try:
            by_name[process.name] += pss_bytes(process.pid)
        except _GONE:
            continue
        except PermissionError:
            peak.unreadable += 1
    peak.samples += 1
    total = sum(by_name.values())
    if total > peak.total:
        peak.total, peak.by_name = total, dict(by_name)
