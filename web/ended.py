"""The stream of finished jobs in Redis, as the waiters' listener reads it: ids only, nothing is unpacked."""

from __future__ import annotations

from typing import Any, cast

import redis

from prorl_celery.settings import Settings
from prorl_celery.store.clients import reaching_redis
from prorl_celery.store.keys import Keys

MAX_ENTRIES = 1000
"""Entries of one read: a listener that was away for long catches up in pieces."""


class ResultsStream:
    """`EndedJobs` on Redis. `client` is for blocking calls: no retries, a reply may take a minute."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self._client = client
        self._key = Keys(settings.key_prefix)("results")

    def end(self) -> str:
        """The id of the newest entry. Raises `StoreUnavailable`."""
        with reaching_redis():
            newest = cast("list[tuple[bytes, Any]]", self._client.xrevrange(self._key, count=1))
        return newest[0][0].decode() if newest else "0-0"

    def read(self, after: str, timeout: float) -> tuple[list[str], str]:
        """The ids of jobs that ended after `after`, and the new place. Raises `StoreUnavailable`."""
        # BLOCK 0 would wait for ever.
        block = max(1, round(timeout * 1000)) if timeout > 0 else None
        with reaching_redis():
            reply = self._client.xread({self._key: after}, count=MAX_ENTRIES, block=block)
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", reply[0][1] if reply else [])  # type: ignore[index]
        if not entries:
            return [], after
        return [fields[b"job"].decode() for _, fields in entries if b"job" in fields], entries[-1][0].decode()
