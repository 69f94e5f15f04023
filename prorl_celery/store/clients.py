"""The two kinds of Redis client: one for scripts and reads, one for calls that block.

Both have bounded pools and bounded time-outs. The first retries a few times: every script of ours may run twice.
A blocking call holds its connection for as long as it waits, so those have a pool of their own.
"""

from __future__ import annotations

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError, OutOfMemoryError, ReadOnlyError, ResponseError, TimeoutError
from redis.retry import Retry

from prorl_celery.errors import StoreUnavailable
from prorl_celery.settings import Settings

SCRIPT_CONNECTIONS = 32
"""Connections of one process for scripts; a thread waits for a free one."""

BLOCKING_CONNECTIONS = 64
"""Connections of one process for calls that block."""

TIMEOUT_SECONDS = 5.0
"""For connecting, for one reply and for a free connection alike."""

BLOCK_SECONDS = 60.0
"""Longest a blocking call may wait at the server."""

RETRIES = 2
"""Further tries after a lost connection or a late reply, 50 ms and 100 ms later."""


def script_client(settings: Settings) -> redis.Redis:
    """The client for scripts and reads: bytes in and out, made once per process and shared by its threads."""
    return _client(
        settings, SCRIPT_CONNECTIONS, TIMEOUT_SECONDS, Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES)
    )


def blocking_client(settings: Settings) -> redis.Redis:
    """The client for XREAD BLOCK and subscriptions: bytes in and out, no retries, waits up to `BLOCK_SECONDS`."""
    return _client(settings, BLOCKING_CONNECTIONS, BLOCK_SECONDS + TIMEOUT_SECONDS, Retry(ExponentialBackoff(), 0))


def _client(settings: Settings, connections: int, timeout: float, retry: Retry) -> redis.Redis:
    pool = redis.BlockingConnectionPool.from_url(
        settings.redis_url,
        max_connections=connections,
        timeout=TIMEOUT_SECONDS,
        socket_timeout=timeout,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=retry,
        protocol=2,
    )
    return redis.Redis(connection_pool=pool)


PASSING = ("MISCONF", "BUSY", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOPERM")
"""How a refusal begins that tells of the server's state and not of the command: its disk is full, a script is busy,
its replicas are gone, its users were changed."""


class reaching_redis:
    """Turns the client's errors into `StoreUnavailable`. A class, since it stands on the hot path."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, (ConnectionError, TimeoutError)):
            raise StoreUnavailable(f"Redis did not answer: {error}") from error
        if isinstance(error, (OutOfMemoryError, ReadOnlyError)):
            raise StoreUnavailable(f"Redis takes no writes: {error}") from error
        # A pipeline's error begins with the command it was about.
        if isinstance(error, ResponseError) and str(error).rpartition(" caused error: ")[2].startswith(PASSING):
            raise StoreUnavailable(f"Redis refuses: {error}") from error
