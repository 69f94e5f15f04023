"""Which processes have become a supervisor's by the death of their own parents."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Container
from pathlib import Path


def orphans_of(pid: int, *, known: Container[int]) -> list[int]:
    """The direct children of `pid` that are not among `known`, zombies left out.

    Read from every `/proc/PID/stat`: `/proc/PID/task/TID/children` is not on every kernel.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in known:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            # pid (comm) state ppid ...; comm may hold spaces and brackets
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(entry.name))
    return found


def kill_orphans_of(pid: int, *, known: Container[int]) -> list[int]:
    """Kill them; those there were."""
    found = orphans_of(pid, known=known)
    for orphan in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)
    return found
