"""How much memory a sandbox's processes have, read from outside.

Nothing in a sandbox is asked: what runs there could lie. The kernel's own lists lead from a sandbox's first processes
to all others (an orphan's parent becomes the first process of its namespace).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
READ_BYTES = 8192


class Process(NamedTuple):
    """One process's memory in bytes."""

    pid: int
    resident: int
    """All of it that is in RAM: its own, files, shared."""
    anonymous: int
    """Its own, swapped out or not; after a fork, parent and child both count what neither has changed."""


@cache
def can_walk() -> bool:
    """Whether this kernel lists a process's children (CONFIG_PROC_CHILDREN; every distribution's does)."""
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


@cache
def has_swap() -> bool:
    """Whether memory may be where the cheap reading does not see it."""
    try:
        return len(Path("/proc/swaps").read_text(encoding="utf-8").splitlines()) > 1
    except OSError:
        return False


def walk(roots: list[int], most: int) -> list[Process]:
    """The memory of these processes and of all that descend from them, `most` at most. Processes that end meanwhile
    are left out.
    """
    found: list[Process] = []
    waiting = list(roots)
    seen = set(roots)
    while waiting and len(found) < most:
        pid = waiting.pop()
        base = f"/proc/{pid}"
        try:
            sizes = read(base + "/statm").split(None, 3)
            children = _children(base, pid)
        except OSError:
            continue
        resident, swapped = int(sizes[1]), _field(pid, "status", b"VmSwap:") if has_swap() else 0
        found.append(Process(pid, resident * PAGE, (resident - int(sizes[2])) * PAGE + swapped))
        for child in children:
            number = int(child)
            if number not in seen:
                seen.add(number)
                waiting.append(number)
    return found


def _children(base: str, pid: int) -> list[bytes]:
    """What each thread has started: every thread has a list of its own."""
    threads = os.stat(base + "/task").st_nlink - 2  # noqa: PTH116 - a Path costs more than the call
    children = _whole(f"{base}/task/{pid}/children")
    if threads > 1:
        for thread in os.listdir(base + "/task"):  # noqa: PTH208
            if thread != str(pid):
                children += b" " + _whole(f"{base}/task/{thread}/children")
    return children.split()


def shared(processes: list[Process]) -> int:
    """Bytes of shared mappings and files on tmpfs, as every process counts them for itself."""
    return sum(_field(process.pid, "status", b"RssShmem:") for process in processes)


def exact(pid: int) -> tuple[int, int]:
    """Bytes of a process's own memory and of shared mappings, each page divided by how many processes have it.

    The kernel looks at every page for this: it takes some milliseconds a GiB. Raises `OSError`, also where this user
    may not look.
    """
    text = _whole(f"/proc/{pid}/smaps_rollup")
    anonymous, shmem = _value(text, b"Pss_Anon:"), _value(text, b"Pss_Shmem:")
    if b"Pss_Anon:" not in text:  # before Linux 5.3 they are told together, with files
        anonymous = _value(text, b"Pss:")
    return anonymous + _value(text, b"SwapPss:"), shmem


def children(pid: int) -> list[int]:
    """The processes that one has started, or inherited; none when it has gone."""
    try:
        return [int(child) for child in _children(f"/proc/{pid}", pid)]
    except OSError:
        return []


def parent(pid: int) -> int:
    """The pid of a process's parent; 0 when it has gone."""
    try:
        return int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 2)[1])
    except OSError:
        return 0


def name(pid: int) -> str:
    """What a process is called, as plain text; "?" when it has gone."""
    try:
        raw = read(f"/proc/{pid}/comm").strip()
    except OSError:
        return "?"
    return "".join(chr(byte) if 32 <= byte < 127 else "?" for byte in raw) or "?"


def _field(pid: int, file: str, field: bytes) -> int:
    try:
        return _value(read(f"/proc/{pid}/{file}"), field)
    except OSError:
        return 0


def _value(text: bytes, field: bytes) -> int:
    """Bytes of a line `Field:   12 kB`; 0 where there is none."""
    _, found, rest = text.partition(b"\n" + field)
    return int(rest.split(None, 1)[0]) << 10 if found else 0


def read(path: str) -> bytes:
    """The start of one of the kernel's files, in as few calls as can be. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, READ_BYTES)
    finally:
        os.close(descriptor)


def _whole(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, READ_BYTES)
        if len(data) < READ_BYTES >> 1:  # the kernel fills a read with whole entries as far as they fit
            return data
        while more := os.read(descriptor, READ_BYTES):
            data += more
        return data
    finally:
        os.close(descriptor)
