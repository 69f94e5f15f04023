"""How many sandboxes of this node leaked: a number in a file of the keeper's directory, for all who find one.

Leaked is a sandbox that outlived its job by more than 30 s, that would not end when it was killed again and again, or
that was found alive when its keeper was dead; each counts once. The number outlives the processes that count, and goes
with the directory.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from prorl_celery.sandbox import wire
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

LONGEST_NUMBER = 32


class LeakCounter:
    """Of one node. No call raises: what cannot be written now is added at the next call."""

    def __init__(self, settings: Settings) -> None:
        self._path: Path = wire.keeper_directory(settings) / "leaked"
        self._pending = 0

    @property
    def value(self) -> int:
        """How many there were so far."""
        try:
            return _number(self._path.read_bytes()) + self._pending
        except OSError:
            return self._pending

    def add(self, count: int) -> None:
        """So many more."""
        self._pending += count
        if not self._pending:
            return
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.warning("leaked sandboxes cannot be counted in %s: %s", self._path, error)
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the keeper must not wait
            total = _number(os.pread(descriptor, LONGEST_NUMBER, 0)) + self._pending
            os.pwrite(descriptor, b"%d\n" % total, 0)
            self._pending = 0
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("leaked sandboxes cannot be counted in %s: %s", self._path, error)
        finally:
            os.close(descriptor)


def _number(text: bytes) -> int:
    return int(text) if text.strip().isdigit() else 0
