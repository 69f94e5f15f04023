"""The backends' health, as the leading node sees it: `up` while `/health` answers, `down` after two misses in a row.

A backend that was registered before it was reachable comes up here. The probes of a round run at once, each with its
own deadline, so that one hung backend does not delay the news of the others.
"""

from __future__ import annotations

import asyncio
import logging

import aiohttp

from prorl_celery.scheduling.backends import BackendRegistry, BackendStatus

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
MISSES = 2


class Probe:
    """One round of probes at a time."""

    def __init__(self, backends: BackendRegistry) -> None:
        self._backends = backends
        self._missed: dict[str, int] = {}

    def round(self) -> None:
        """Probe every backend and write down what changed. Raises `StoreError`."""
        known = self._backends.list()
        self._missed = {b.url: self._missed.get(b.url, 0) for b in known}
        if not known:
            return
        for backend, answers in zip(known, asyncio.run(_probe_all([b.url for b in known])), strict=True):
            self._judge(backend, answers)

    def _judge(self, backend: BackendStatus, answers: bool) -> None:
        missed = self._missed[backend.url] = 0 if answers else self._missed[backend.url] + 1
        if answers and backend.state == "down":
            log.warning("backend %s is up", backend.url)
            self._backends.set_state(backend.url, "up")
        elif missed >= MISSES and backend.state == "up":
            log.warning("backend %s does not answer; it is out until it does", backend.url)
            self._backends.set_state(backend.url, "down")


async def _probe_all(urls: list[str]) -> list[bool]:
    timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
        return await asyncio.gather(*(_healthy(session, url) for url in urls))


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url.rstrip("/").removesuffix("/v1") + "/health") as reply:
            return reply.status < 500  # a server without such a route answers 404, and answers
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
