"""The backends' health, as the leading node sees it: `up` while the health check answers, `down` after two misses in a
row. A backend that was registered before it was reachable comes up here.

A probe starts each second and takes two at most, so that a server that hangs is out within four seconds, and no server
delays the news of another. On a thread of its own: the sweep must not wait for it. Now and then a server that is well
is asked for its prefix cache's hit rate too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import aiohttp

from prorl_celery.errors import StoreError
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.health import PROBE_SECONDS, cache_hit_rate, well

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
MISSES = 2
RATE_EVERY = 10
"""Rounds between questions for the hit rate."""
AT_ONCE = 4
"""Probes of one backend at a time; there are two, unless this process is held up."""


class Probe:
    """Looks after all backends while `leads()`."""

    def __init__(self, backends: BackendRegistry, leads: Callable[[], bool] = lambda: True) -> None:
        self._backends = backends
        self._leads = leads
        self._missed: dict[str, int] = {}
        self._under_way: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PROBE_SECONDS + EVERY_SECONDS + 5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                asyncio.run(self._rounds())
            except Exception:
                # A bug of ours must not leave the fleet without anybody who looks.
                log.exception("probe")
                self._stop.wait(EVERY_SECONDS)

    async def _rounds(self) -> None:
        # A connection of its own for each probe: an old one would not tell that nobody listens any more.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as probes:
            number, tasks = 0, set[asyncio.Task[None]]()
            while not self._stop.is_set():
                if self._leads():
                    for backend in await self._known():
                        if self._under_way.get(backend.url, 0) < AT_ONCE:
                            asks_rate = number % RATE_EVERY == 0 and backend.state != "down"
                            task = probes.create_task(self._look(session, backend, asks_rate))
                            tasks.add(task)
                            task.add_done_callback(tasks.discard)
                else:
                    self._missed.clear()
                number += 1
                await asyncio.to_thread(self._stop.wait, EVERY_SECONDS)
            for task in tasks:
                task.cancel()

    async def _known(self) -> list[Backend]:
        try:
            known = await asyncio.to_thread(self._backends.list)
        except StoreError as error:
            log.warning("probe: %s", error)
            return []
        urls = {backend.url for backend in known}
        self._missed = {url: missed for url, missed in self._missed.items() if url in urls}
        return list(known)

    async def _look(self, session: aiohttp.ClientSession, backend: Backend, asks_rate: bool) -> None:
        url = backend.url
        self._under_way[url] = self._under_way.get(url, 0) + 1
        try:
            answers = await well(session, url)
            if answers is None:
                return
            missed = self._missed[url] = 0 if answers else self._missed.get(url, 0) + 1
            if answers and backend.state == "down":
                log.warning("backend %s is up", url)
                await asyncio.to_thread(lambda: self._backends.change(url, state="up"))
            elif missed >= MISSES and backend.state != "down":
                log.warning("backend %s does not answer; it is out until it does", url)
                await asyncio.to_thread(lambda: self._backends.change(url, state="down"))
            elif answers and asks_rate:
                rate = await cache_hit_rate(session, url)
                if rate is not None and rate != backend.cache_hit_rate:
                    await asyncio.to_thread(lambda: self._backends.change(url, cache_hit_rate=rate))
        except StoreError as error:
            log.warning("probe: %s", error)
        finally:
            left = self._under_way[url] - 1
            if left:
                self._under_way[url] = left
            else:
                del self._under_way[url]
