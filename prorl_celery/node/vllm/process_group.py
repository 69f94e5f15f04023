"""A process group's members, and ending them together with what they share in memory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from prorl_celery.node.pause import until

SHARED_MEMORY = Path("/dev/shm")
GONE_S = 5.0
TRACKER_S = 2.0
"""What a resource tracker gets: it removes the shared memory of the dead once their pipe to it is closed."""


def members(group: int) -> list[int]:
    """The processes of process group `group`, this one and zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            # pid (comm) state ppid pgrp ...; comm may hold spaces and brackets
            state, _, of = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                found.append(int(entry.name))
    return found


def end(group: int) -> bool:
    """Kill the group's processes except this one, and remove the shared memory that they would have removed.

    Returns whether all are gone within 5 s.
    """
    shared: set[Path] = set()
    trackers_until = time.monotonic() + TRACKER_S

    def gone() -> bool:
        living = members(group)
        for pid in living:
            shared.update(_shared_memory(pid))
            if _is_tracker(pid) and time.monotonic() < trackers_until:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not living

    all_gone = until(gone, GONE_S, every=0.05)
    for file in shared:
        file.unlink(missing_ok=True)
    return all_gone


def _is_tracker(pid: int) -> bool:
    """Whether it is Python's resource tracker, which ends by itself."""
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _shared_memory(pid: int) -> set[Path]:
    """The files of Python's shared memory and semaphores that a process has mapped."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.parent == SHARED_MEMORY and path.name.startswith(("psm_", "sem.mp-")):
                found.add(path)
    return found
