"""What of this user's services is left on this machine: of keepers that are gone, and of ours where it has lost sight.

The first is found by labels and locks alone, so it needs neither keeper nor store. The second are processes with our
keeper's label whose sandbox it does not list; they count only when they are seen so twice, some seconds apart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from prorl_celery.errors import SandboxError
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.node.janitor.processes import session_of
from prorl_celery.node.janitor.removal import Removal, remove, report
from prorl_celery.node.janitor.thing import Thing
from prorl_celery.node.janitor.things import inventory
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
UNLISTED_SECONDS = 8.0
"""How long a sandbox may have processes that its keeper does not list: it is starting, or has just ended."""


class Leftovers:
    """One round after the other; what would not go is tried again at the next."""

    def __init__(self, settings: Settings, keeper: KeeperClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._keeper = keeper
        self._clock = clock
        self._counter = LeakCounter(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leftovers", daemon=True)
        self._unlisted: dict[Thing, float] = {}
        self._counted: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Sweep now and again and again, on a thread of its own: a big folder takes its time."""
        self._thread.start()

    def stop(self) -> None:
        """Sweep no more. One that is under way ends with this process."""
        self._stop.set()

    def find(self) -> list[Thing]:
        """All that can be removed now."""
        things = inventory(self._settings)
        return [thing for thing in things if thing.fate == "left"] + self._lost_sight_of(things)

    def sweep(self) -> list[Removal]:
        """One round, counted and logged."""
        removals = remove(self.find())
        report(removals)
        leaked = {(str(r.thing.owner), r.thing.sandbox) for r in removals if r.thing.sandbox}
        self._counter.add(len(leaked - self._counted))
        # Those that would not go are found again, and are no others.
        self._counted = {key for key in leaked if any(_is_of(r, key) for r in removals if r.outcome == "failed")}
        return removals

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.sweep()
            except Exception:
                # A bug of ours must not leave the node without anybody who cleans up.
                log.exception("leftovers")
            self._stop.wait(EVERY_SECONDS)

    def _lost_sight_of(self, things: Iterable[Thing]) -> list[Thing]:
        try:
            pid = self._keeper.status()["pid"]
            listed = self._keeper.list(spares=True)
        except SandboxError:
            return []
        known = {str(one["sandbox_id"]) for one in listed}
        known |= {session_of(one[leader]) for one in listed for leader in ("pid", "starter")}
        ours = [t for t in things if t.sandbox and t.owner is not None and t.owner.pid == pid]
        now = self._clock()
        unlisted = [thing for thing in ours if thing.fate == "lives" and thing.sandbox not in known]
        self._unlisted = {thing: self._unlisted.get(thing, now) for thing in unlisted}
        return [replace(t, fate="left") for t, since in self._unlisted.items() if now - since > UNLISTED_SECONDS]


def _is_of(removal: Removal, key: tuple[str, str]) -> bool:
    return (str(removal.thing.owner), removal.thing.sandbox) == key
