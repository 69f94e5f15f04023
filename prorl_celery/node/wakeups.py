"""What wakes the upkeep process before its next duty is due: what is told on Redis channels (cancels, revocations), the
end of a process, or the order to stop.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Iterable
from typing import Any

import redis

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 2.0


class Wakeups:
    """One thread's wait on channels and on `stop`, which a signal handler may call."""

    def __init__(self, client: redis.Redis, *channels: str) -> None:
        self._client: Any = client
        self._channels = channels
        self._pubsub: Any = None
        self._retry_at = 0.0
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.stopping = False

    def stop(self) -> None:
        self.stopping = True
        os.eventfd_write(self._stop_fd, 1)

    def wait(self, seconds: float, also: Iterable[int] = ()) -> bool:
        """Wait at most that long, or until one of `also` is readable; True when something was told on a channel."""
        poll = select.poll()
        for descriptor in also:
            poll.register(descriptor, select.POLLIN)
        poll.register(self._stop_fd, select.POLLIN)
        channel_fd = self._descriptor()
        if channel_fd is not None:
            poll.register(channel_fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(seconds * 1000)]
        return channel_fd in ready and not self.stopping and self._told()

    def _descriptor(self) -> int | None:
        """The subscription's socket, made anew after a failure, at most every few seconds."""
        if self._pubsub is None:
            if time.monotonic() < self._retry_at:
                return None
            try:
                self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
                self._pubsub.subscribe(*self._channels)
            except (redis.RedisError, OSError) as error:
                self._lost(error)
                return None
        connection = self._pubsub.connection
        sock = getattr(connection, "_sock", None)
        return sock.fileno() if sock is not None else None

    def _told(self) -> bool:
        """Read what stands in the socket; True when a message was among it."""
        told = False
        try:
            while self._pubsub is not None and self._pubsub.connection.can_read(timeout=0):
                told |= self._pubsub.get_message(timeout=0) is not None
        except (redis.RedisError, OSError) as error:
            self._lost(error)
        return told

    def _lost(self, error: Exception) -> None:
        log.warning("channels %s: %s", " ".join(self._channels), error)
        if self._pubsub is not None:
            self._pubsub.close()
        self._pubsub = None
        self._retry_at = time.monotonic() + RECONNECT_SECONDS
