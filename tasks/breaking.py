"""Breaks off a handler's own Python code, once, when its stage was told to stop and it does not listen.

The interpreter can raise an exception in another thread between two of its steps. That ends an endless loop in Python,
and the slot is free again; code that blocks in C it reaches when that returns, if ever. It is done only while the
thread is in the handler's own code: in ours, which listens, it could strike in the middle of a reply or of a lock.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OURS = (
    "tasks.",
    *(f"prorl_celery.{room}." for room in ("agents", "jobs", "llm", "sandbox", "scheduling", "store", "tools")),
)
"""Modules whose waits listen to the job's signal."""
CALLS_HANDLERS = "tasks.work"


class BrokenOff(BaseException):
    """Raised in a handler's code by `break_off`; no `Exception`, so that an `except` of its does not take it."""


class Breakable:
    """The handler's code of one claim, in the one thread that runs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._struck = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """The block is the handler's code, in this thread. Nothing strikes the thread after it."""
        with self._lock:
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._thread = None
                if self._struck:
                    _raise_in(threading.get_ident(), None)  # it may be on its way still

    def break_off(self) -> bool:
        """Raise `BrokenOff` in the handler's code, if the thread is there. True when that was done, now or before."""
        with self._lock:
            if not self._struck and self._thread is not None and _in_own_code(self._thread):
                self._struck = True
                _raise_in(self._thread, BrokenOff)
            return self._struck


def _in_own_code(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(OURS):
            return bool(name == CALLS_HANDLERS)
        frame = frame.f_back
    return True


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    argument = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
