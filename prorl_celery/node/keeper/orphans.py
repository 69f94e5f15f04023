"""Processes whose sandbox's outer process is gone: what a keeper inherits, and what a dead keeper left.

A bubblewrap that is killed while it starts can leave its inner process waiting for ever: that one has not yet asked
to die with its parent. The keeper is therefore a subreaper: orphans of its sandboxes become its children. Orphans of
a keeper that was killed are found by the name that every sandbox carries in its arguments (`sandbox.owner`).
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from prorl_celery.sandbox.owner import owner_in

PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Orphaned descendants of this process become its children from now on."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_session_orphans(session: int) -> None:
    """Kill and reap the children of ours that belong to the terminal session of a process that has ended."""
    for pid in _children():
        try:
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def reap_strangers(known: set[int]) -> None:
    """Reap ended children that nobody here waits for: inherited ones."""
    for pid in _children():
        if pid not in known:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def kill_left_behind() -> int:
    """Kill what sandboxes of dead keepers left on this machine, as far as this user may. Returns how many.

    A keeper in a container has another pid namespace: we see its sandboxes, and cannot tell whether it lives.
    """
    killed = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            owner = owner_in((entry / "cmdline").read_bytes())
            if owner is not None and owner.uid == os.getuid() and owner.fate == "dead":
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed


def _children() -> list[int]:
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []
