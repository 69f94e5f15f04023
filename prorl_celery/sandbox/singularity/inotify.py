"""Waiting for a file: inotify, which Python's library does not offer."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLOSE_WRITE, _MOVED_TO, _CREATE = 0x08, 0x80, 0x100

Found = TypeVar("Found")


def await_file(path: Path, read: Callable[[Path], Found | None], *, until: int, timeout: float) -> Found | None:
    """What `read` makes of a file once that is something, while its folder may be still to come.

    None when `until`, a descriptor, becomes readable or `timeout` seconds have passed first. The folder's own parent
    is there. Raises `OSError`.
    """
    deadline = time.monotonic() + timeout
    changes = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if changes < 0:
        raise _error("inotify_init1")
    try:
        _watch(changes, path.parent.parent)
        poll = select.poll()
        poll.register(changes, select.POLLIN)
        poll.register(until, select.POLLIN)
        while True:
            # Watched before it is looked for: what comes in between is not missed.
            with suppress(FileNotFoundError):
                _watch(changes, path.parent)
            found = read(path)
            left = deadline - time.monotonic()
            if found is not None or left <= 0:
                return found
            if until in [descriptor for descriptor, _ in poll.poll(left * 1000)]:
                return read(path)
            with suppress(BlockingIOError):
                os.read(changes, 64 << 10)
    finally:
        os.close(changes)


def _watch(changes: int, folder: Path) -> None:
    if _LIBC.inotify_add_watch(changes, os.fsencode(folder), _CLOSE_WRITE | _MOVED_TO | _CREATE) < 0:
        raise _error(str(folder))


def _error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), what)
