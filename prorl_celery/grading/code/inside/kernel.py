"""What is asked of Linux here: who may look into a process, who inherits orphans, and the end of all descendants."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import time
from contextlib import suppress

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_SECONDS = 0.005
"""Between two looks at processes that have been killed and have not ended, and two tries to fork."""
MOST_PROCESSES = resource.getrlimit(resource.RLIMIT_NPROC)
"""Before any case has run."""


def hide(hidden: bool = True) -> None:
    """Nobody of the same user may look into this process, or trace it; nor into its forks, until they undo it."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0 if hidden else 1)


def inherit_orphans() -> None:
    """Whatever descends from this process and loses its parent becomes a child of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """The children of a process, zombies included; none of one that is gone."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def fork(within: float) -> int | None:
    """As `os.fork`; None where the machine has no process to give for so many seconds, and no case has seen to that.

    Raises: `OSError` where one has: of the same user, it may limit this process.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            return os.fork()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM) or not _unlimited():
                raise
        if time.monotonic() > deadline:
            return None
        time.sleep(PATIENCE_SECONDS)  # nothing tells when there is one to give


def _unlimited() -> bool:
    return resource.getrlimit(resource.RLIMIT_NPROC) == MOST_PROCESSES and not children(os.getpid())


def descendants(pid: int) -> list[int]:
    """All processes below one, nearest first."""
    found = children(pid)
    for below in found:
        found += children(below)
    return found


def end_all(within: float) -> tuple[bool, float]:
    """End every process below this one and reap it; whether all are gone within so many seconds, and the seconds of
    CPU that they had used.

    They are stopped before they are killed: what is killed makes room for what a fork bomb forks next.
    """
    me, used = os.getpid(), 0.0
    deadline = time.monotonic() + within
    while descendants(me):
        stopped: set[int] = set()
        while (news := set(descendants(me)) - stopped) and time.monotonic() < deadline:
            for pid in news:
                _send(pid, signal.SIGSTOP)
            stopped |= news
        for pid in stopped:
            _send(pid, signal.SIGKILL)
        while True:
            try:
                ended, _, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True, used
            if ended == 0:
                break
            used += usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            return False, used
        time.sleep(PATIENCE_SECONDS)
    return True, used


def cpu_seconds(pid: int) -> float:
    """What a process used so far, with all its threads and the children that it has waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"tT"
    except OSError:
        return False


def busy_seconds(pid: int) -> float:
    """How long a process's first thread has run or waited for a CPU; 0 where the kernel does not count that."""
    return sum(_scheduled(pid))


def waited_seconds(pid: int) -> float:
    """How long it has waited for a CPU."""
    return _scheduled(pid)[1]


def _scheduled(pid: int) -> tuple[float, float]:
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran, waited, _ = file.read().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)
