"""Kombu's Redis transport, with pools like those of our own clients.

Kombu's own pools raise when all their connections are out, so that a burst of acknowledgements would lose some. Its
connections try ten times with pauses of up to 10 s, so that a publish would hang for a minute, and an event loop for
ever. Ours wait for a free connection, try as often as our clients, follow Sentinel and are counted as they are.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import kombu.connection
import redis
from kombu.transport import redis as kombus
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from prorl_celery.store.address import Address
from prorl_celery.store.clients import FREE_SECONDS, RETRIES
from prorl_celery.store.connections import MasterPool, counted, make_sentinel

READ_SECONDS = 5.0
"""Longest the event loop waits for the rest of a message."""


RECONNECT_SECONDS = 2.0
"""Longest pause between two tries to reach a broker that is away; kombu's grows to 30 s."""


class Connection(kombu.connection.Connection):
    """Kombu's connection, which comes back soon after its broker."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        pauses = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": RECONNECT_SECONDS}
        return super().ensure_connection(*args, **(pauses | options))  # type: ignore[no-untyped-call]


class Subscription(redis.client.PubSub):
    """A subscription that is read when something has come. Kombu's would wait without end for the rest of a message."""

    def parse_response(self, block: bool = True, timeout: float = 0) -> Any:
        return super().parse_response(block=False, timeout=READ_SECONDS)  # type: ignore[no-untyped-call]


class Channel(kombus.Channel):
    """Kombu's channel, with pools and reads that wait no longer than they should."""

    @cached_property
    def subclient(self) -> Subscription:
        return Subscription(self.async_pool)

    def close(self) -> None:
        try:
            super().close()  # type: ignore[no-untyped-call]
        finally:
            self._disconnect_pools()  # type: ignore[no-untyped-call]  # left open where the read before that failed

    def _get_pool(self, asynchronous: bool = False) -> redis.ConnectionPool:
        options = self._options(asynchronous)
        options["connection_class"] = counted(options["connection_class"])
        return redis.BlockingConnectionPool(**options)  # type: ignore[no-untyped-call]

    def _options(self, asynchronous: bool) -> dict[str, Any]:
        if self.connection is None or self.connection.client is None:
            # A channel of a connection that was lost, over which one still publishes or acknowledges, or that is closed
            # once more: an error that is expected then; kombu's AttributeError would end the process.
            raise redis.ConnectionError("the connection to the broker is closed")
        options: dict[str, Any] = self._connparams(asynchronous)  # type: ignore[no-untyped-call]
        self.keyprefix_fanout = self.keyprefix_fanout.format(db=options["db"])
        if options.get("socket_keepalive"):
            del options["socket_keepalive_options"]  # redis-py's: the kernel's would take two hours
        # The event loop's own connections do not try again: a lost subscription would be made anew within the read that
        # lost it, which then waits for a message and stops the loop for ever. Celery makes a new connection.
        retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), 0 if asynchronous else RETRIES)
        return {**options, "timeout": FREE_SECONDS, "retry": retry}


class SentinelChannel(Channel, kombus.SentinelChannel):
    """Kombu's channel for Sentinel, with pools that wait and follow the master."""

    from_transport_options = (*kombus.SentinelChannel.from_transport_options, "sentinels")  # type: ignore[assignment]

    master_name: str
    sentinel_kwargs: dict[str, Any]
    sentinels: tuple[tuple[str, int], ...]

    def _get_pool(self, asynchronous: bool = False) -> redis.ConnectionPool:
        options = self._options(asynchronous)
        del options["host"], options["port"]
        sentinel = make_sentinel(Address({}, self.sentinels, self.master_name, self.sentinel_kwargs))
        # Kombu closes the connections to the Sentinels with the channel.
        if asynchronous:
            self._async_sentinel_manager = sentinel
        else:
            self._sentinel_manager = sentinel
        return MasterPool(sentinel, self.master_name, **options)


class _Registered:
    """Put before a transport: Celery drops a connection that it could not register with its loop, still open."""

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        try:
            super().register_with_event_loop(connection, loop)  # type: ignore[misc]
        except Exception:
            connection.close_connection(connection)
            raise


class Transport(_Registered, kombus.Transport):
    """For redis://, rediss:// and redis+socket:// urls."""

    Channel = Channel


class SentinelTransport(_Registered, kombus.SentinelTransport):
    """For sentinel:// urls; transport options: `sentinels`, `master_name`, `sentinel_kwargs`."""

    Channel = SentinelChannel
