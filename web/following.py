"""Wakes those who follow a job's events: one subscription per process, to the channels of the jobs that are followed.

A follower first asks to be woken and then looks, so that it misses nothing. After Redis was away every follower is
woken once. A follower's place is one of the long-polls' (`web/waiters.py`), so that their number is bounded together.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import defaultdict
from typing import Any

import redis

from prorl_celery.store.keys import Keys
from web.waiters import Watch

log = logging.getLogger("prorl.web.following")

LISTEN_SECONDS = 15.0
RECONNECT_SECONDS = 1.0


class Following:
    """All followers of this process. `client` is for blocking calls. The listener starts with the first of them."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client
        self._prefix = keys("event", "")
        self._lock = threading.Lock()
        self._watches: dict[str, set[Watch]] = defaultdict(set)
        self._heard: dict[str, threading.Event] = {}
        self._confirmed: set[str] = set()
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._listener: threading.Thread | None = None
        self._closed = threading.Event()

    def follow(self, watch: Watch, within: float) -> None:
        """Wake a watch at each event of its job. Look after this returns; it waits up to `within` seconds for Redis to
        know of it.
        """
        job_id = str(watch.job_id)
        with self._lock:
            self._watches[job_id].add(watch)
            heard = self._heard.setdefault(job_id, threading.Event())
            if self._listener is None or not self._listener.is_alive():
                self._listener = threading.Thread(target=self._run, name="prorl-events-listener", daemon=True)
                self._listener.start()
        os.eventfd_write(self._changed, 1)
        heard.wait(within)

    def leave(self, watch: Watch) -> None:
        """Wake it no more."""
        job_id = str(watch.job_id)
        with self._lock:
            watches = self._watches.get(job_id, set())
            watches.discard(watch)
            if not watches:
                self._watches.pop(job_id, None)
                self._heard.pop(job_id, None)
        os.eventfd_write(self._changed, 1)

    def close(self) -> None:
        """End the listener."""
        self._closed.set()
        os.eventfd_write(self._changed, 1)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with self._client.pubsub() as pubsub:
                    self._listen(pubsub)
            except (redis.RedisError, OSError) as error:
                log.warning("the events of jobs are out of reach, trying again: %s", error)
                self._closed.wait(RECONNECT_SECONDS)

    def _listen(self, pubsub: Any) -> None:
        known: set[str] = set()
        self._confirmed.clear()
        poll = select.poll()
        poll.register(self._changed, select.POLLIN)
        socket = -1
        while not self._closed.is_set():
            known = self._subscribe(pubsub, known)
            if known and socket < 0:
                socket = pubsub.connection._sock.fileno()
                poll.register(socket, select.POLLIN)
            if any(fd == self._changed for fd, _ in poll.poll(LISTEN_SECONDS * 1000)):
                os.eventfd_read(self._changed)
            if known:
                pubsub.check_health()  # one whose other end is gone without a word has nothing to read
            while known and pubsub.connection.can_read(timeout=0):
                self._take(pubsub.get_message(timeout=0))

    def _subscribe(self, pubsub: Any, known: set[str]) -> set[str]:
        """Subscribe to what is followed now, and to nothing else. The last channel stays until another comes: without
        any there would be no connection to wait at.
        """
        with self._lock:
            wanted = set(self._watches)
            for job_id in wanted & self._confirmed:
                self._heard[job_id].set()
        if new := wanted - known:
            pubsub.subscribe(*(self._prefix + job_id for job_id in new))
        if old := known - wanted if wanted else set():
            pubsub.unsubscribe(*(self._prefix + job_id for job_id in old))
            self._confirmed -= old
        return wanted or known

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None or message["type"] not in {"subscribe", "message"}:
            return
        job_id = message["channel"].decode().removeprefix(self._prefix)
        self._confirmed.add(job_id)
        with self._lock:
            heard = self._heard.get(job_id)
            watches = list(self._watches.get(job_id, ()))
        if heard is not None:
            heard.set()
        for watch in watches:
            watch.wake()
