"""Connections to Redis: pools that are bounded, wait for a free connection, follow a failover, and can be counted.

    PRORL_REDIS_URL -> Address -> pool -> connections, each with a name (CLIENT LIST shows it)

All connections of a process, the broker's included, are counted by `open_connections`.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Any
from weakref import WeakSet

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPoolProxy, SentinelManagedConnection

from prorl_celery.settings import Settings
from prorl_celery.store.address import Address

SENTINEL_SECONDS = 2.0
"""For connecting to a Sentinel, and for its answer: the next one is asked then."""

_lock = threading.Lock()
_connections: WeakSet[Any] = WeakSet()


class Counted:
    """Put before a class of redis-py's connections: its objects are known to `open_connections`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with _lock:
            _connections.add(self)


def counted(kind: type) -> type:
    """That class of connections, counted. A new one each time: kombu makes a class a channel, which must go with it."""
    return type(f"Counted{kind.__name__}", (Counted, kind), {})


def open_connections() -> int:
    """How many connections to Redis this process has open now, those of the broker included."""
    with _lock:
        known = list(_connections)
    return sum(1 for connection in known if connection.is_connected and connection.pid == os.getpid())


def name_of(settings: Settings, process: str, use: str) -> str:
    """A connection's name, as CLIENT LIST shows it: `prorl/<node>/<process>/<use>`."""
    return "/".join(re.sub(r"[^!-~]", "_", part) for part in ("prorl", settings.node, process, use))


def make_pool(address: Address, *, connections: int, wait_seconds: float, **options: Any) -> redis.ConnectionPool:
    """A pool of at most so many connections; a thread waits up to `wait_seconds` for a free one, then
    `redis.ConnectionError` is raised. `options` are redis-py's for a connection.
    """
    options = {**options, **address.options, "max_connections": connections, "timeout": wait_seconds}
    if address.sentinels:
        return MasterPool(make_sentinel(address), address.service, **options)
    options["connection_class"] = counted(options.get("connection_class", redis.Connection))
    return redis.BlockingConnectionPool(**options)  # type: ignore[no-untyped-call]


def make_sentinel(address: Address) -> Sentinel:
    """Those who know where the master is. They are asked in turn, each once."""
    return Sentinel(  # type: ignore[no-untyped-call]
        address.sentinels,
        sentinel_kwargs={
            **(address.sentinel_options or {}),
            "socket_timeout": SENTINEL_SECONDS,
            "socket_connect_timeout": SENTINEL_SECONDS,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        },
    )


class MasterPool(redis.BlockingConnectionPool):
    """Connections to whichever server Sentinel says is the master of a service, each time one is made.

    redis-py's own pool for this does not wait. A connection to a master that has been replaced is closed when it comes
    back; so are the idle ones, as soon as one has been told of another master.
    """

    def __init__(self, sentinel: Sentinel, service: str, **options: Any) -> None:
        self.sentinel = sentinel
        self._master = SentinelConnectionPoolProxy(self, True, False, service, sentinel)  # type: ignore[no-untyped-call]
        kind = options.pop("connection_class", SentinelManagedConnection)
        super().__init__(connection_class=counted(kind), **options)  # type: ignore[no-untyped-call]
        self.connection_kwargs["connection_pool"] = self._master

    def release(self, connection: Any) -> None:
        if (connection.host, connection.port) != self._master.master_address:
            connection.disconnect()
        super().release(connection)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        super().close()
        self.sentinel.close()
