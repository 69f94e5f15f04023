"""The janitor ends the sandboxes of this node that no live job names, and counts them.

A sandbox belongs to a claim of a job and, once it is committed, to the job. The stage that made it ends it; what is
left when a worker was killed, or when a job was cancelled between two stages, is found here.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.jobs.store import JobStore
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

YOUNG_SECONDS = 2.0
"""A sandbox this young may belong to a claim that was made after the store was asked."""

LEAKED_SECONDS = 30.0
"""No sandbox may outlive its job by more than this; the leak counter says how many did."""


class Janitor:
    """Compares what the keeper has with what the store says is live."""

    def __init__(self, store: JobStore, keeper: KeeperClient, settings: Settings) -> None:
        self._store = store
        self._keeper = keeper
        self._node = settings.node
        self._strays: dict[str, float] = {}
        self.leaked = 0

    def sweep(self) -> None:
        """One round. Raises `StoreError`, `SandboxError`; the next round tries again."""
        # The keeper first: a sandbox made after this list is not judged by an older list of jobs.
        sandboxes = self._keeper.list()
        if not sandboxes:
            self._strays.clear()
            return
        live = self._store.live_on(self._node)
        strays = [s for s in sandboxes if s["age_s"] >= YOUNG_SECONDS and not _wanted(s, live.get(s["job_id"]))]
        now = time.monotonic()
        self._strays = {s["sandbox_id"]: self._strays.get(s["sandbox_id"], now) for s in strays}
        for stray in strays:
            self._end(stray, now)

    def _end(self, stray: dict[str, Any], now: float) -> None:
        name = stray["sandbox_id"]
        log.info(
            "ending sandbox %s: claim %s of job %s is not live here",
            name,
            stray["fence"],
            stray["job_id"],
        )
        if now - self._strays[name] > LEAKED_SECONDS:
            self.leaked += 1
            self._strays[name] = now
        try:
            self._keeper.stop(name)
        except SandboxError as error:
            log.error("sandbox %s would not end: %s", name, error)


def _wanted(sandbox: dict[str, Any], job: tuple[int, frozenset[str]] | None) -> bool:
    """Whether a live job may still use this sandbox: those that its record names, and those that its latest claim
    made. Not those of an earlier claim of the same attempt: they may hold the places that init waits for.
    """
    if job is None:
        return False
    fence, committed = job
    return bool(sandbox["sandbox_id"] in committed or sandbox["fence"] == fence)
