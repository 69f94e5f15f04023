"""Whether Redis has room for new work.

At its `maxmemory` Redis refuses writes, those of the broker too, so that jobs under way would stand still. So new jobs
are refused earlier, and what is left is for the jobs that were accepted. Redis is asked once a second at most; what was
let in since counts as used.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import redis

log = logging.getLogger(__name__)

FULL_AT = 0.8
"""Part of `maxmemory` from which on new work is refused."""

ASK_SECONDS = 1.0


class Room:
    """Redis's memory, as one process knows it. Thread-safe."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._lock = threading.Lock()
        self._asked = 0.0
        self._used = self._most = 0
        self._told = False

    def lacks(self, bytes_wanted: int) -> str | None:
        """Why there is no room for so many bytes more; None where there is, which are then taken to be used.

        Raises: what the client raises.
        """
        with self._lock:
            if time.monotonic() >= self._asked + ASK_SECONDS:
                self._ask()
                self._asked = time.monotonic()
            if not self._most or self._used + bytes_wanted <= FULL_AT * self._most:
                self._used += bytes_wanted
                return None
            return (
                f"Redis has {self._used} of its {self._most} bytes (maxmemory) in use; new jobs are refused from "
                f"{FULL_AT:.0%} on, until some have ended and expired"
            )

    def _ask(self) -> None:
        try:
            told = self._client.info("memory")
        except redis.ResponseError as error:
            # Redis's own limit holds in any case.
            if not self._told:
                log.warning("Redis does not tell how full it is: %s", error)
            self._told = True
            return
        self._used, self._most = int(told["used_memory"]), int(told.get("maxmemory", 0))
