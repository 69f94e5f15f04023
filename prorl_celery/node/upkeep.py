"""Upkeep of a node: its line in the fleet's record, its janitor, and, while it leads the fleet, the sweep.

Never a Celery task: it must not queue behind what it repairs. One process, a schedule of small duties on one thread;
each duty's failure is logged and the duty comes round again.

    duty        every            who
    record      2 s              every node        slots, sandboxes, room, leaks; a keeper that hangs is ended; before
                                                   the first, what an earlier boot of this node has left
    janitor     5 s, on cancels  every node        ends sandboxes that no live job of this node names
    sweep       PRORL_SWEEP      the leader        lapsed leases, lost messages, dead nodes' queues, expiry
    recount     30 s             the leader        the backends' sets of live jobs
    batches     PRORL_SWEEP      the leader        revoked jobs (at once, too), batches that nobody feeds
    probe       1 s              the leader        health of the inference backends; on a thread of its own
    leftovers   10 s             every node        removes what dead keepers left on this machine; on another

And as they happen, the deaths of the node's stage processes: their jobs go on at once.
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
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.deaths import Deaths, machine
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.node.janitor.leftovers import Leftovers
from prorl_celery.node.janitor.strays import YOUNG_SECONDS, Janitor
from prorl_celery.node.keeper_watch import KeeperWatch
from prorl_celery.node.probe import Probe
from prorl_celery.node.requests import NO_SUPERVISOR, SupervisorLine
from prorl_celery.node.wakeups import Wakeups
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import BackendRegistry
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.scheduling.nodes import NODE_TTL_SECONDS, NodeRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client, script_client
from prorl_celery.store.keys import Keys

log = logging.getLogger(__name__)

RECORD_SECONDS = 2.0
JANITOR_SECONDS = 5.0
RECOUNT_SECONDS = 30.0
REPLACED = signal.SIGINT
"""Tells an upkeep to end for another one of its node."""


@dataclass(order=True)
class Duty:
    """Something to do again and again."""

    due: float
    name: str = field(compare=False)
    every: float = field(compare=False)
    act: Callable[[], None] = field(compare=False)


class Upkeep:
    """A node's duties."""

    def __init__(self, boot: str, settings: Settings, line: SupervisorLine = NO_SUPERVISOR) -> None:
        self._boot = boot
        self._line = line
        self._settings = settings
        self._id = f"{settings.node}.{boot}.{secrets.token_hex(4)}"
        self._started_at = time.time()
        client = script_client(settings, process="upkeep")
        self._publisher = Publisher(make_app(settings, boot=boot, connections=2, process="upkeep"))
        self._store = JobStore(client, settings, publish=self._publisher.publish_all)
        self._batches = BatchRegistry(client, settings, publisher_of(self._publisher.publish_all))
        self._nodes = NodeRegistry(client, settings)
        self._keeper = KeeperClient(settings)
        self._keeper_watch = KeeperWatch(settings.silence_seconds)
        self._janitor = Janitor(self._store, self._keeper, settings)
        self._leftovers = Leftovers(settings, self._keeper)
        self._leaks = LeakCounter(settings)
        self._backends = BackendRegistry(client, settings)
        self._deaths = Deaths(settings.node, self._store, self._nodes)
        self._heard_at: float | None = None
        self._draining = self._drains_on = False
        self._leaves = False
        self._leads = False
        self._probe = Probe(self._backends, lambda: self._leads)
        keys = Keys(settings.key_prefix)
        self._wakeups = Wakeups(blocking_client(settings, process="upkeep"), keys("cancel"), keys("revoked"))
        now = time.monotonic()
        self._duties = [
            Duty(now, "record", RECORD_SECONDS, self.record),
            Duty(now, "sweep", settings.sweep_seconds, self.sweep),
            Duty(now, "janitor", JANITOR_SECONDS, self._janitor.sweep),
            Duty(now, "recount", RECOUNT_SECONDS, self.recount),
            Duty(now, "batches", settings.sweep_seconds, self.tend_batches),
        ]
        heapq.heapify(self._duties)

    def run(self) -> None:
        """Do what is due until told to stop."""
        self._probe.start()
        self._leftovers.start()
        while not self._wakeups.stopping:
            self._line.beat()
            duty = self._duties[0]
            wait = duty.due - time.monotonic()
            if wait > 0 and self._wakeups.wait(wait, self._deaths.descriptors):
                # Jobs were revoked or cancelled: their sandboxes may be nobody's now.
                self._do("batches", self.tend_batches)
                self._do("janitor", self._janitor.sweep)
                self._bring_forward("janitor", YOUNG_SECONDS)  # for those that are too young to be judged now
                continue
            self._do("deaths", self._bury)
            if duty.due <= time.monotonic():
                self._do(duty.name, duty.act)
                duty.due = time.monotonic() + duty.every
                heapq.heapreplace(self._duties, duty)
        self._probe.stop()
        self._leftovers.stop()
        self._do("deaths", self._bury)
        if self._leaves:
            self._do("record", lambda: self._nodes.remove(self._settings.node, self._boot))
            self._do("sweep", self.sweep)  # there may be no other node to send elsewhere what waits for this one
        if self._leads:
            self._do("sweep", lambda: self._store.resign(self._id))

    def _bring_forward(self, name: str, seconds: float) -> None:
        """Let a duty be due so soon."""
        (duty,) = (one for one in self._duties if one.name == name)
        duty.due = min(duty.due, time.monotonic() + seconds)
        heapq.heapify(self._duties)

    def record(self) -> None:
        """Write the node's line in the fleet's record."""
        settings = self._settings
        if self._heard_at is None:
            self._succeed()
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
            "machine": machine(),
            "leaked": self._leaks.value,
            "room": 0,
            "sandboxes": 0,
            "stuck": 0,
        }
        try:
            keeper = self._keeper.status()
        except SandboxError as error:
            record["keeper"] = {"error": str(error)}
            self._keeper_watch.missed()
        else:
            self._keeper_watch.heard(keeper["pid"])
            record.update(room=keeper["room"], sandboxes=keeper["live"], stuck=keeper["stuck"], keeper=keeper)
        told = self._nodes.beat(record)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self._heard_at is not None and now - self._heard_at > NODE_TTL_SECONDS:
            log.warning("this node was taken for dead: its jobs may have gone elsewhere")
            self._janitor.sweep()
        elif self._heard_at is None and self._drains_on:
            self._nodes.drain(settings.node)
        self._heard_at = now
        if told.draining != self._draining:
            log.warning("this node %s", "drains: it takes no new jobs" if told.draining else "takes new jobs again")
            self._draining = told.draining
        if told.alone:
            self._line.want_solo()
        for process in told.processes:
            self._deaths.look(self._boot, process)

    def _succeed(self) -> None:
        """Clean up after an earlier boot of this node: it is this one now that goes by the node's name."""
        for earlier in self._nodes.nodes():
            if earlier["node"] != self._settings.node or earlier["boot"] == self._boot:
                continue
            for process in earlier["processes"]:
                if earlier.get("machine") == machine():
                    self._deaths.look(earlier["boot"], process)  # some may yet finish what they have
                else:
                    self._deaths.presume(earlier["boot"], process)
            self._deaths.settle()
            self._nodes.remove(self._settings.node, earlier["boot"])
            self._drains_on = self._drains_on or earlier["draining"]

    def _bury(self) -> None:
        """Have the jobs of processes that have died go on, at once where this node leads."""
        if self._deaths.settle() and self._leads:
            self.sweep()

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

    def tend_batches(self) -> None:
        """End what batches have no more use for, and batches that nobody feeds, if this node leads."""
        if self._leads and (ended := self._batches.tend()):
            log.info("%d jobs of batches were revoked", ended)

    def stop(self, *, leaves: bool) -> None:
        """End `run` soon; callable from a signal handler. `leaves`: the node is at its end, and says so; else another
        upkeep of it follows.
        """
        self._leaves = leaves
        self._wakeups.stop()

    @staticmethod
    def _do(name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (ProrlError, OSError) as error:
            log.warning("%s: %s", name, error)


def main(boot: str, settings: Settings, line: SupervisorLine = NO_SUPERVISOR) -> int:
    """Run a node's upkeep until TERM (the node stops) or INT (it is replaced); returns the exit code."""
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s upkeep %(name)s: %(message)s",
    )
    upkeep = Upkeep(boot, settings, line)
    signal.signal(signal.SIGTERM, lambda *_: upkeep.stop(leaves=True))
    signal.signal(REPLACED, lambda *_: upkeep.stop(leaves=False))
    upkeep.run()
    return 0
