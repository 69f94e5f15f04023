"""What tells a job's stage to stop: one descriptor that every wait of the stage watches, and the reason behind it.

Given by: the heartbeat (the lease is lost), the listener (somebody cancelled), the clock (the deadline has passed), a
stopping process. The first reason stays.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from prorl_celery.errors import StageError, Stopping, StoreError


class JobSignal:
    """A `CancelSignal`: an eventfd that stays readable once set. `told` is called when that happens, by who sets it."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._reason: StageError | StoreError | None = None
        self._since: float | None = None
        self._raised: StageError | StoreError | None = None
        self._closed = False
        self._stopping = threading.Event()
        self._told = told

    def fileno(self) -> int:
        return self._fd

    @property
    def is_set(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> StageError | StoreError | None:
        """Why the job must stop, or None."""
        return self._reason

    @property
    def raised(self) -> StageError | StoreError | None:
        """What the stage was stopped with amid its work, or None: whatever its code made of that, it is not done."""
        return self._raised

    @property
    def since(self) -> float | None:
        """When it was set, by the monotonic clock, or None."""
        return self._since

    def set(self, reason: StageError | StoreError) -> None:
        """Tell the stage to stop. Later reasons change nothing."""
        with self._lock:
            if self._reason is not None or self._closed:
                return
            self._reason, self._since = reason, time.monotonic()
            os.eventfd_write(self._fd, 1)
        self._told()

    def raise_if_set(self) -> None:
        if self._reason is not None:
            self._raise(self._reason)

    def wait(self, seconds: float) -> None:
        """Let seconds pass. Raises the reason as soon as there is one."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(seconds * 1000)
        self.raise_if_set()

    def process_is_stopping(self) -> None:
        """The process was told to stop. The stage may still finish; see `tasks.doubt` for what it must not believe."""
        self._stopping.set()

    def raise_if_stopping_within(self, seconds: float, kind: type[Stopping] = Stopping) -> None:
        """Raise `Stopping`, of this kind, if the process is told to stop by then."""
        if self._stopping.wait(seconds):
            self._raise(kind("the worker was told to stop"))

    def _raise(self, reason: StageError | StoreError) -> NoReturn:
        self._raised = self._raised or reason
        raise reason

    def close(self) -> None:
        """Close the descriptor; a later `set` is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)


class Bell:
    """Wakes all who wait for something that concerns many jobs, such as a backend that came up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ears: set[int] = set()

    def ring(self) -> None:
        with self._lock:
            for fd in self._ears:
                os.eventfd_write(fd, 1)

    @contextmanager
    def ear(self) -> Iterator[int]:
        """A descriptor that becomes readable at the next ring; subscribe before looking at the state."""
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with self._lock:
            self._ears.add(fd)
        try:
            yield fd
        finally:
            with self._lock:
                self._ears.discard(fd)
            os.close(fd)
