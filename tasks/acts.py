"""What a job's stage is doing right now, for those who wonder why it takes so long.

Each thing that may last (a model call, a tool, the start of a sandbox, the handler's own code) is done within an act.
An act within another hides it; where one begins or ends, something has happened, and the time counts anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Act:
    """Something under way: `name`, the `thread` that does it, and whether it only waits for its turn."""

    name: str
    thread: str
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class ActNow:
    """The latest act of a stage, and for how many seconds nothing has happened since it began or came back."""

    act: Act
    seconds: float


class Acts:
    """The acts of one claim, innermost last. Thread-safe: a handler may use threads of its own."""

    def __init__(self, first: str) -> None:
        self._lock = threading.Lock()
        self._open = [Act(first, threading.current_thread().name)]
        self._since = time.monotonic()

    @contextmanager
    def act(self, name: str, *, waiting: bool = False) -> Iterator[None]:
        """Be at this while the block runs. `waiting`: for something that is nobody's fault, and therefore no stall."""
        act = Act(name, threading.current_thread().name, waiting)
        with self._lock:
            self._open.append(act)
            self._since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._open = [other for other in self._open if other is not act]
                self._since = time.monotonic()

    def now(self) -> ActNow:
        """What is being done."""
        with self._lock:
            return ActNow(self._open[-1], time.monotonic() - self._since)
