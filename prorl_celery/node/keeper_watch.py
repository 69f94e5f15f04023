"""Ends a keeper that lives and says nothing more: its supervisor sees a death, and no silence."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time

log = logging.getLogger(__name__)


class KeeperWatch:
    """Told of every answer of the keeper, and of every question that it left unanswered."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._pid: int | None = None
        self._process: int | None = None
        """A descriptor of the keeper, so that no other process of its pid is ever meant."""
        self._heard_at = 0.0

    def heard(self, pid: int) -> None:
        """It answered."""
        self._heard_at = time.monotonic()
        if pid != self._pid:
            self.close()
            with contextlib.suppress(ProcessLookupError):
                self._process = os.pidfd_open(pid)
                self._pid = pid

    def missed(self) -> bool:
        """It did not; whether it was ended for that."""
        if self._process is None or time.monotonic() - self._heard_at < self._patience:
            return False
        log.error("the keeper (pid %s) has not answered for %.0f s: killed", self._pid, self._patience)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self.close()
        return True

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if self._process is not None:
            os.close(self._process)
        self._process = self._pid = None
