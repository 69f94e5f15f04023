"""The two kinds of Redis client: one for scripts and reads, one for calls that block.

Both have bounded pools and bounded time-outs. The first retries a few times: every script of ours may run twice.
A blocking call holds its connection for as long as it waits, so those have a pool of their own.
"""

from __future__ import annotations

import re
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from redis.retry import Retry

from prorl_celery.errors import StoreUnavailable
from prorl_celery.settings import Settings
from prorl_celery.store.address import Address
from prorl_celery.store.connections import make_pool, name_of

SCRIPT_CONNECTIONS = 32
"""Connections of one process for scripts; a thread waits for a free one."""

BLOCKING_CONNECTIONS = 64
"""Connections of one process for calls that block."""

TIMEOUT_SECONDS = 5.0
"""For connecting and for one reply."""

BLOCK_SECONDS = 60.0
"""Longest a blocking call may wait at the server."""

PING_SECONDS = 5.0
"""A subscription that was silent for so long is pinged whenever one looks at it."""

PINGS = 4
"""Pings without an answer after which a subscription is given up."""

RETRIES = 2
"""Further tries after a lost connection or a late reply, 50 ms and 100 ms later."""

FREE_SECONDS = TIMEOUT_SECONDS * (RETRIES + 1)
"""For a free connection: as long as those who have them may take while Redis does not answer."""


def script_client(settings: Settings, *, process: str = "prorl", connections: int = SCRIPT_CONNECTIONS) -> redis.Redis:
    """The client for scripts and reads: bytes in and out, made once per process and shared by its threads.

    Raises `SettingsError` for a url that is none.
    """
    name = name_of(settings, process, "scripts")
    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES)
    return redis.Redis(connection_pool=_pool(settings, name, connections, TIMEOUT_SECONDS, retry))


def blocking_client(settings: Settings, *, process: str = "prorl") -> redis.Redis:
    """The client for XREAD BLOCK and subscriptions: bytes in and out, no retries, waits up to `BLOCK_SECONDS`.

    Raises `SettingsError` for a url that is none.
    """
    name = name_of(settings, process, "blocking")
    timeout, retry = BLOCK_SECONDS + TIMEOUT_SECONDS, Retry(ExponentialBackoff(), 0)
    return _Blocking(connection_pool=_pool(settings, name, BLOCKING_CONNECTIONS, timeout, retry, PING_SECONDS))


class Subscription(redis.client.PubSub):
    """A subscription that notices when its other end is gone without a word: silence alone says nothing."""

    def check_health(self) -> None:
        if self.health_check_response_counter >= PINGS:
            self.health_check_response_counter = 0
            raise ConnectionError(f"{PINGS} pings on a subscription without an answer")
        super().check_health()


class _Blocking(redis.Redis):
    def pubsub(self, **options: Any) -> Subscription:
        return Subscription(self.connection_pool, **options)


def _pool(
    settings: Settings, name: str, connections: int, timeout: float, retry: Retry, ping_seconds: float = 0
) -> redis.ConnectionPool:
    return make_pool(
        Address.parse(settings.redis_url),
        connections=connections,
        wait_seconds=FREE_SECONDS,
        client_name=name,
        socket_timeout=timeout,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=retry,
        protocol=2,
        health_check_interval=ping_seconds,
    )


PASSING_ERRORS = (NoPermissionError, MasterDownError, ClusterDownError, TryAgainError)
PASSING = re.compile(r"(^|-)(MISCONF|BUSY|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|NOPERM|LOADING|READONLY|OOM)\b")
"""Refusals that tell of the server's state and not of the command: its disk is full, a script is busy, its replicas are
gone, its users were changed, another is the master now. A server before 7.0 wraps those of a script's own commands.
"""


def is_passing(error: ResponseError) -> bool:
    """Whether Redis refused for reasons of its own, so that it may take the same command later."""
    if isinstance(error, PASSING_ERRORS):
        return True
    said = str(error)
    if "caused error: " in said:  # a pipeline's begins with the command it was about
        said = said.rpartition(" caused error: ")[2]
    elif said.startswith(("Error running script", "Error compiling")):
        said = said.rpartition("user_script")[2]
    return PASSING.match(said.lstrip(":0123456789 ")) is not None


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
        if isinstance(error, ResponseError) and is_passing(error):
            raise StoreUnavailable(f"Redis refuses: {error}") from error
