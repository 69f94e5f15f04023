"""Listens, once per process, for what concerns live jobs: cancels and backends that became usable.

Messages may be missed while the connection is down; the heartbeat carries cancels as a flag, and waits for a backend
look again by themselves, so a missed message costs seconds and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import redis

log = logging.getLogger(__name__)

LISTEN_SECONDS = 1.0
RECONNECT_SECONDS = 1.0


class Listener:
    """Calls `channels[name](text)` for every message; one thread, reconnecting.

    `idle()` is called when nothing came for `LISTEN_SECONDS`, and when messages may have been missed.
    """

    def __init__(
        self,
        client: redis.Redis,
        channels: dict[str, Callable[[str], None]],
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._client: Any = client
        self._channels = channels
        self._idle = idle
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except (redis.RedisError, OSError) as error:
                log.warning("listener: %s", error)
            except Exception:
                # Without this thread the process would hear of no cancel until the next heartbeat, and of no pause.
                log.exception("listener")
            self._tell(self._idle)
            self._stop.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(*self._channels)
            while not self._stop.is_set():
                message = pubsub.get_message(timeout=LISTEN_SECONDS)
                if message is None:
                    self._tell(self._idle)
                    continue
                channel = self._channels.get(_text(message["channel"]))
                if channel is not None:
                    self._tell(channel, _text(message["data"]))

    @staticmethod
    def _tell(act: Callable[..., None], *told: str) -> None:
        try:
            act(*told)
        except Exception:
            # What one message brings about must not cost the others theirs.
            log.exception("listener")


def _text(data: bytes | str) -> str:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data
