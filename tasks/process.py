"""What one worker process of one stage owns, and how that starts and stops; `tasks.worker` runs it.

nursery         forks children for code that may block; itself forked while there was one thread
heartbeat       leases, the supervisor, and this process's line in the node's record
warden          slots that do not listen, the order to stop, this process's end
listener        cancels, backends that came or went, pauses of the policy
deadlines       ends stages that overrun
model loop      one asyncio thread for all model calls
and one thread for each slot, Celery's, which runs `tasks.stages.run_stage`
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from typing import Any

from prorl_celery.app import Publisher, make_app
from prorl_celery.errors import ProrlError
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.messages import Message, Role, node_queue
from prorl_celery.jobs.store import JobStore
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.node.requests import NO_SUPERVISOR, SupervisorLine
from prorl_celery.rewards.servers import RewardServers
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.scheduling.policy import PolicyRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client, script_client
from prorl_celery.store.connections import open_connections
from prorl_celery.store.keys import Keys
from tasks.beat import Beat
from tasks.clock import DeadlineThread
from tasks.gate import PolicyGate
from tasks.intake import Intake
from tasks.listener import Listener
from tasks.nursery import Nursery
from tasks.signals import Bell
from tasks.warden import Warden
from tasks.watch import BackendWatch

log = logging.getLogger(__name__)


def slots_of(stage: Role, index: int, settings: Settings) -> int:
    """How many of the node's slots of a stage fall to its process of that index."""
    if stage == "solo":
        return 1
    if stage == "init":
        return settings.init_slots
    if stage == "eval":
        return settings.eval_slots
    processes = min(settings.rollout_processes, settings.rollout_slots)
    share, rest = divmod(settings.rollout_slots, processes)
    return share + (1 if index < rest else 0)


BEAT_CONNECTIONS = 2


class StageProcess:
    """What the slots of a stage process share. Nothing here starts a thread or a connection before `start`."""

    def __init__(
        self,
        stage: Role,
        index: int,
        boot: str,
        settings: Settings,
        nursery: Nursery,
        handlers: HandlerRegistry,
        line: SupervisorLine = NO_SUPERVISOR,
    ) -> None:
        self.stage = stage
        self.index = index
        self.boot = boot
        self.settings = settings
        self.name = f"{stage}-{index}"
        # A process that was retired runs on beside its successor of the same name.
        self.id = f"{settings.node} {boot} {self.name} {secrets.token_hex(4)}"
        self.slots = slots_of(stage, index, settings)
        self.nursery = nursery
        self.handlers = handlers
        self.line = line
        self.app = make_app(settings, boot=boot, connections=min(16, self.slots + 2), process=self.name)
        self.publisher = Publisher(self.app)
        client = script_client(settings, process=self.name)
        self.store = JobStore(client, settings, publish=self.publisher.publish_all)
        self.backends = BackendRegistry(client, settings)
        self.nodes = NodeRegistry(client, settings)
        # The heartbeat does not queue for a connection behind the slots.
        beats = script_client(settings, process=self.name, connections=BEAT_CONNECTIONS)
        self._record = NodeRegistry(beats, settings)
        self.keeper = KeeperClient(settings)
        self.models = ModelLoop()
        self.rewards = RewardServers()
        self.deadlines = DeadlineThread()
        self.backends_bell = Bell()
        self.gate = PolicyGate(PolicyRegistry(client, settings), self.id, settings.backend_wait_seconds)
        self.watch = BackendWatch(self.backends, self.models)
        self.beat = Beat(
            JobStore(beats, settings),
            settings.heartbeat_seconds,
            settings.stall_seconds,
            first=line.beat,
            also=self._tell_node,
        )
        self.intake = Intake(self.queues)
        self.giving_back = threading.Event()
        """Set when jobs are given back: the process ends soon."""
        self.warden = Warden(self)
        keys = Keys(settings.key_prefix)
        self.listener = Listener(
            blocking_client(settings, process=self.name),
            {
                keys("cancel"): self.beat.cancel,
                keys("revoked"): lambda _: self.beat.now(),
                keys("policy"): self.gate.heard,
                keys("backends"): self._backend_changed,
            },
            self.watch.idle,
        )
        self._started_at = time.time()
        self._stopped = threading.Lock()
        self.retiring = False
        self.draining = False

    @property
    def own_queues(self) -> list[str]:
        """The queues of this node alone."""
        if self.stage == "init":
            return []
        return [node_queue(self.stage, self.settings.node, self.boot)]

    @property
    def queues(self) -> list[str]:
        """The queues this process reads, the node's own first: what is under way goes before what is new."""
        return [*self.own_queues, self.stage]

    def start(self) -> None:
        self.deadlines.start()
        self.beat.start()
        self.listener.start()
        self.warden.start()

    def ready(self, consumer: Any) -> None:
        """Celery's consumer is at work now."""
        self.intake.attach(consumer)
        self.warden.ready()
        self.line.beat()  # whoever was replaced by this process has waited for that
        self._tell_node(0)
        if self.stage in ("rollout", "solo"):
            self.gate.join()

    def drain(self) -> None:
        """Stop was asked for: let jobs finish for a while, then give back what could not. Asked for again: at once."""
        self.warden.order_to_stop()

    def retire(self, why: str) -> None:
        """Take no new jobs, have a fresh process started beside this one, and end with the last job."""
        if not self.retiring:
            self.retiring = True
            log.error("retires: %s", why)
            self.intake.only(())
            self.line.retire()
            self.warden.wake()

    def publish(self, message: Message) -> None:
        """Publish a message, and see that somebody will read it. Raises `StoreUnavailable`."""
        self.publisher.publish(message)
        if message.queue.partition(".")[0] == "solo":
            self.line.want_solo()

    def pause(self, seconds: float) -> bool:
        """Let seconds pass; False when the process is about to end."""
        return not self.giving_back.wait(seconds)

    def stop(self) -> None:
        """Stop all that runs, whoever comes first; nothing when it was stopped before."""
        if not self._stopped.acquire(blocking=False):
            return
        node, boot = self.settings.node, self.boot
        for stop in (
            self.warden.stop,
            self.listener.stop,
            self.beat.stop,
            self.deadlines.stop,
            self.models.stop,
            self.gate.close,
            lambda: self._record.forget_process(node, boot, self.id),
            self.nursery.close,
        ):
            try:
                stop()
            except ProrlError as error:
                log.warning("at the end: %s", error)

    def _backend_changed(self, _: str) -> None:
        self.backends_bell.ring()
        self.watch.heard()

    def _tell_node(self, busy: int) -> None:
        draining = self._record.beat_process(
            self.settings.node,
            self.boot,
            {
                "id": self.id,
                "name": self.name,
                "stage": self.stage,
                "pid": os.getpid(),
                "slots": self.slots,
                "busy": busy,
                "wedged": self.warden.wedged,
                "retiring": self.retiring,
                "draining": self.draining,
                "started_at": self._started_at,
                "handlers": sorted(self.handlers),
                "connections": open_connections(),
                "reward_servers": self.rewards.told(),
            },
        )
        self._obey(draining)
        self.gate.beat()

    def _obey(self, draining: bool) -> None:
        """A node that is drained works off what is bound to it, and takes nothing that others could."""
        if draining != self.draining:
            self.draining = draining
            if not self.retiring:
                self.intake.only(self.own_queues if draining else self.queues)
        self.intake.check()
