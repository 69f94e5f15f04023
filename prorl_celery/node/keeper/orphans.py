"""Processes whose sandbox's outer process is gone, which the keeper inherits.

A bubblewrap that is killed while it starts can leave its inner process waiting for ever: that one has not yet asked
to die with its parent. The keeper is therefore a subreaper: orphans of its sandboxes become its children. Orphans of
a keeper that was killed are the janitor's (`node.janitor`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Orphaned descendants of this process become its children from now on."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_in_session(session: int) -> list[int]:
    """The children of ours, ended ones too, that belong to the terminal session of a process that has ended."""
    found = []
    for pid in children_of(os.getpid()):
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


def kill_marked(session: int, mark: str | None) -> None:
    """Kill what shares a terminal session with a process, itself left out, and what has a mark in its environment: all
    there is to go by without a namespace.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != session:
            try:
                if os.getsid(int(entry.name)) == session or _has_mark(entry, mark):
                    kill(int(entry.name))
            except OSError:
                continue


def kill(pid: int) -> None:
    """SIGKILL to a process that may be gone, and cannot be another's: it is a child of ours, or of a child's."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def reap_strangers(known: set[int]) -> None:
    """Reap ended children that nobody here waits for: inherited ones."""
    for pid in children_of(os.getpid()):
        if pid not in known:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def children_of(pid: int) -> list[int]:
    """The children of a process of one thread; none where it has gone or the kernel does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def descendants_of(pid: int) -> list[int]:
    """What a process has started, and what that has, as far as each is of one thread; the nearest first."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return found


def _has_mark(entry: Path, mark: str | None) -> bool:
    return mark is not None and f"={mark}".encode() in (entry / "environ").read_bytes()
