"""The janitor ends the sandboxes of this node that no live job names, and counts those that would not go in time.

A sandbox belongs to a claim of a job and, once it is committed, to the job. The stage that made it ends it; what is
left when a worker was killed, or when a job was cancelled between two stages, is found here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

YOUNG_SECONDS = 2.0
"""A sandbox this young may belong to a claim that was made after the store was asked, unless its job has ended."""

LEAKED_SECONDS = 30.0
"""No sandbox may outlive its job by more than this; the leak counter says how many did."""


class Janitor:
    """Compares what the keeper has with what the store says is live. Raises of every method: `StoreError`,
    `SandboxError`; the next round tries again.
    """

    def __init__(
        self,
        store: JobStore,
        keeper: KeeperClient,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._node = settings.node
        self._clock = clock
        self._counter = LeakCounter(settings)
        self._since: dict[str, float] = {}
        self._leaked: set[str] = set()

    def find(self) -> list[dict[str, Any]]:
        """The sandboxes that no live job names, as the keeper lists them."""
        # The keeper first: a sandbox made after this list is not judged by an older list of jobs.
        sandboxes = self._keeper.list()
        if not sandboxes:
            return []
        live = self._store.live_on(self._node)
        strays = [s for s in sandboxes if not _wanted(s, live.get(s["job_id"]))]
        ended = self._store.ended({s["job_id"] for s in strays if s["age_s"] < YOUNG_SECONDS})
        return [s for s in strays if s["age_s"] >= YOUNG_SECONDS or s["job_id"] in ended]

    def sweep(self) -> None:
        """One round."""
        strays = self.find()
        now = self._clock()
        self._since = {s["sandbox_id"]: self._since.get(s["sandbox_id"], now) for s in strays}
        self._leaked &= self._since.keys()
        for stray in strays:
            name = stray["sandbox_id"]
            log.info("ending sandbox %s: claim %s of job %s is not live here", name, stray["fence"], stray["job_id"])
            # The keeper counts those that it cannot end by itself.
            if now - self._since[name] > LEAKED_SECONDS and name not in self._leaked and not stray["stuck"]:
                log.error("sandbox %s has outlived job %s by %g s", name, stray["job_id"], LEAKED_SECONDS)
                self._leaked.add(name)
                self._counter.add(1)
            try:
                # Not waited for: one that will not end must not hold up the others, nor this process's other duties.
                self._keeper.begin_stop(name)
            except SandboxError as error:
                log.error("sandbox %s could not be ended: %s", name, error)


def _wanted(sandbox: dict[str, Any], job: tuple[int, frozenset[str]] | None) -> bool:
    """Whether a live job may still use this sandbox: those that its record names, and those that its latest claim
    made. Not those of an earlier claim of the same attempt: they may hold the places that init waits for.
    """
    if job is None:
        return False
    fence, committed = job
    return bool(sandbox["sandbox_id"] in committed or sandbox["fence"] == fence)
