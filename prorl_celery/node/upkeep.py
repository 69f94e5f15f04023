"""Upkeep of a node: its line in the fleet's record, its janitor, and, while it leads the fleet, the sweep.

Never a Celery task: it must not queue behind what it repairs. One process, a schedule of small duties on one thread;
each duty's failure is logged and the duty comes round again.

    duty        every            who
    record      2 s              every node        slots, sandboxes, room, leaks
    janitor     5 s, on cancel   every node        ends sandboxes that no live job of this node names
    sweep       PRORL_SWEEP      the leader        lapsed leases, lost messages, dead nodes' queues, expiry
    recount     30 s             the leader        the backends' sets of live jobs
    probe       1 s              the leader        health of the inference backends; on a thread of its own
    leftovers   10 s             every node        removes what dead keepers left on this machine; on another
"""

from __future__ import annotations

import heapq
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prorl_celery.app import Publisher, make_app
from prorl_celery.errors import ProrlError, SandboxError
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.node.janitor.leftovers import Leftovers
from prorl_celery.node.janitor.strays import Janitor
from prorl_celery.node.probe import Probe
from prorl_celery.node.wakeups import Wakeups
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client, script_client
from prorl_celery.store.keys import Keys

log = logging.getLogger(__name__)

RECORD_SECONDS = 2.0
JANITOR_SECONDS = 5.0
RECOUNT_SECONDS = 30.0


@dataclass(order=True)
class Duty:
    """Something to do again and again."""

    due: float
    name: str = field(compare=False)
    every: float = field(compare=False)
    act: Callable[[], None] = field(compare=False)


class Upkeep:
    """A node's duties."""

    def __init__(self, boot: str, settings: Settings) -> None:
        self._boot = boot
        self._settings = settings
        self._id = f"{settings.node}.{boot}.{secrets.token_hex(4)}"
        self._started_at = time.time()
        client = script_client(settings)
        self._store = JobStore(client, settings)
        self._nodes = NodeRegistry(client, settings)
        self._publisher = Publisher(make_app(settings, boot=boot, connections=2))
        self._keeper = KeeperClient(settings)
        self._janitor = Janitor(self._store, self._keeper, settings)
        self._leftovers = Leftovers(settings, self._keeper)
        self._leaks = LeakCounter(settings)
        self._backends = BackendRegistry(client, settings)
        self._leads = False
        self._probe = Probe(self._backends, lambda: self._leads)
        self._wakeups = Wakeups(blocking_client(settings), Keys(settings.key_prefix)("cancel"))
        now = time.monotonic()
        self._duties = [
            Duty(now, "record", RECORD_SECONDS, self.record),
            Duty(now, "sweep", settings.sweep_seconds, self.sweep),
            Duty(now, "janitor", JANITOR_SECONDS, self._janitor.sweep),
            Duty(now, "recount", RECOUNT_SECONDS, self.recount),
        ]
        heapq.heapify(self._duties)

    def run(self) -> None:
        """Do what is due until told to stop."""
        self._probe.start()
        self._leftovers.start()
        while not self._wakeups.stopping:
            duty = self._duties[0]
            wait = duty.due - time.monotonic()
            if wait > 0 and self._wakeups.wait(wait):
                self._do("janitor", self._janitor.sweep)  # a job was cancelled: its sandbox may be nobody's now
                continue
            if duty.due <= time.monotonic():
                self._do(duty.name, duty.act)
                duty.due = time.monotonic() + duty.every
                heapq.heapreplace(self._duties, duty)
        self._probe.stop()
        self._leftovers.stop()
        self._nodes.remove(self._settings.node, self._boot)
        if self._leads:
            self._store.resign(self._id)

    def record(self) -> None:
        """Write the node's line in the fleet's record."""
        settings = self._settings
        record = {
            "node": settings.node,
            "boot": self._boot,
            "slots": {
                "init": settings.init_slots,
                "rollout": settings.rollout_slots,
                "eval": settings.eval_slots,
            },
            "started_at": self._started_at,
            "pid": os.getpid(),
            "leaked": self._leaks.value,
            "room": 0,
            "sandboxes": 0,
            "stuck": 0,
        }
        try:
            keeper = self._keeper.status()
        except SandboxError as error:
            record["keeper"] = {"error": str(error)}
        else:
            record.update(room=keeper["room"], sandboxes=keeper["live"], stuck=keeper["stuck"], keeper=keeper)
        self._nodes.beat(record)

    def sweep(self) -> None:
        """Repair what was lost, if this node leads."""
        self._leads = self._store.lead(self._id)
        if self._leads:
            outcome = self._store.sweep()
            if outcome.messages or outcome.ended:
                log.info("sweep: %d published again, %d ended", len(outcome.messages), len(outcome.ended))
            self._publisher.publish_all(outcome.messages)

    def recount(self) -> None:
        """See that the backends' counts are those of live jobs, if this node leads."""
        if self._leads and (struck := self._backends.recount()):
            log.warning("%d jobs were still counted at backends that they had left", struck)

    def stop(self) -> None:
        """End `run` soon; callable from a signal handler."""
        self._wakeups.stop()

    @staticmethod
    def _do(name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (ProrlError, OSError) as error:
            log.warning("%s: %s", name, error)


def main(boot: str, settings: Settings) -> int:
    """Run a node's upkeep until TERM; returns the exit code."""
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s upkeep %(name)s: %(message)s",
    )
    upkeep = Upkeep(boot, settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: upkeep.stop())
    upkeep.run()
    return 0
