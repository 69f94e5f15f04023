"""A cancel signal for tests of what waits."""

from __future__ import annotations

import os

from prorl_celery.errors import Cancelled


class SetCancel:
    """A cancel signal that a test sets."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0)
        self.is_set = False

    def fileno(self) -> int:
        return self._descriptor

    def raise_if_set(self) -> None:
        if self.is_set:
            raise Cancelled("the test says so")

    def set(self) -> None:
        self.is_set = True
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        self.is_set = False
        os.eventfd_read(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
