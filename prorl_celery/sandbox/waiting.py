"""Waiting for a descriptor, a cancel signal and a deadline at once. Poll, not select: descriptors pass 1,024."""

from __future__ import annotations

import os
import select
import time
from types import TracebackType

from prorl_celery.sandbox.base import CancelSignal


class Waiter:
    """Waits on one descriptor of ours and on a cancel signal."""

    def __init__(self, descriptor: int, cancel: CancelSignal) -> None:
        self._descriptor = descriptor
        self._cancel = cancel
        self._writable = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._poll.register(cancel.fileno(), select.POLLIN)

    def readable(self, deadline: float, *, also_writable: bool = False) -> int:
        """Wait until `deadline` (monotonic seconds) and return the poll events of the descriptor; 0 at the deadline.

        Looks once when the deadline has passed. Raises: what `CancelSignal.raise_if_set` raises.
        """
        if also_writable != self._writable:
            self._poll.modify(self._descriptor, select.POLLIN | (select.POLLOUT if also_writable else 0))
            self._writable = also_writable
        while True:
            remaining = deadline - time.monotonic()
            mine = 0
            for descriptor, event in self._poll.poll(remaining * 1000.0 if remaining > 0 else 0):
                if descriptor == self._descriptor:
                    mine = event
                else:
                    self._cancel.raise_if_set()
            if mine or remaining <= 0:
                return mine


class NeverCancelled:
    """A cancel signal that never comes: for callers without a job (tests, the janitor, the command line)."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def raise_if_set(self) -> None:
        return None

    @property
    def is_set(self) -> bool:
        return False

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def __enter__(self) -> NeverCancelled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
