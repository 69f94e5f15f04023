"""What one worker process of one stage owns, and how that starts and stops; `tasks.worker` runs it.

nursery         forks children for code that may block; itself forked while there was one thread
heartbeat       leases, and this process's line in the node's record
listener        cancels, backends that came or went, pauses of the policy
deadlines       ends stages that overrun
model loop      one asyncio thread for all model calls
and one thread for each slot, Celery's, which runs `tasks.stages.run_stage`
"""

from __future__ import annotations

import os
import secrets
import threading
import time

from prorl_celery.app import Publisher, make_app
from prorl_celery.errors import Stopping
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.messages import node_queue
from prorl_celery.jobs.models import Stage
from prorl_celery.jobs.store import JobStore
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.node.requests import NO_SUPERVISOR, SupervisorLine
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.scheduling.policy import PolicyRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client, script_client
from prorl_celery.store.keys import Keys
from tasks.beat import Beat
from tasks.clock import DeadlineThread
from tasks.gate import PolicyGate
from tasks.listener import Listener
from tasks.nursery import Nursery
from tasks.signals import Bell
from tasks.watch import BackendWatch


def slots_of(stage: Stage, index: int, settings: Settings) -> int:
    """How many of the node's slots of a stage fall to its process of that index."""
    if stage == "init":
        return settings.init_slots
    if stage == "eval":
        return settings.eval_slots
    processes = min(settings.rollout_processes, settings.rollout_slots)
    share, rest = divmod(settings.rollout_slots, processes)
    return share + (1 if index < rest else 0)


class StageProcess:
    """What the slots of a stage process share. Nothing here starts a thread or a connection before `start`."""

    def __init__(
        self,
        stage: Stage,
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
        self.app = make_app(settings, boot=boot, connections=min(16, self.slots + 2))
        self.publisher = Publisher(self.app)
        client = script_client(settings)
        self.store = JobStore(client, settings)
        self.backends = BackendRegistry(client, settings)
        self.nodes = NodeRegistry(client, settings)
        self.keeper = KeeperClient(settings)
        self.models = ModelLoop()
        self.deadlines = DeadlineThread()
        self.backends_bell = Bell()
        self.gate = PolicyGate(PolicyRegistry(client, settings), self.id, settings.backend_wait_seconds)
        self.watch = BackendWatch(self.backends, self.models)
        self.beat = Beat(self.store, settings.heartbeat_seconds, self._tell_node)
        keys = Keys(settings.key_prefix)
        self.listener = Listener(
            blocking_client(settings),
            {
                keys("cancel"): self.beat.cancel,
                keys("policy"): self.gate.heard,
                keys("backends"): self._backend_changed,
            },
            self.watch.idle,
        )
        self._started_at = time.time()
        self._drain: threading.Timer | None = None
        self.stopping = False

    @property
    def queues(self) -> list[str]:
        """The queues this process reads, the node's own first: what is under way goes before what is new."""
        if self.stage == "init":
            return ["init"]
        return [node_queue(self.stage, self.settings.node, self.boot), self.stage]

    def start(self) -> None:
        self.deadlines.start()
        self.beat.start()
        self.listener.start()

    def ready(self) -> None:
        """Celery consumes now."""
        self._tell_node(0)
        if self.stage == "rollout":
            self.gate.join()

    def drain(self) -> None:
        """Stop was asked for: let jobs finish for a while, then give back what could not."""
        self.stopping = True
        for held in self.beat.holding():
            held.signal.process_is_stopping()
        self._drain = threading.Timer(self.settings.drain_seconds, self._give_back)
        self._drain.daemon = True
        self._drain.start()

    def stop(self) -> None:
        if self._drain is not None:
            self._drain.cancel()
        self.listener.stop()
        self.beat.stop()
        self.deadlines.stop()
        self.models.stop()
        self.gate.close()
        self.nodes.forget_process(self.settings.node, self.boot, self.name)
        self.nursery.close()

    def _backend_changed(self, _: str) -> None:
        self.backends_bell.ring()
        self.watch.heard()

    def _give_back(self) -> None:
        for held in self.beat.holding():
            held.signal.set(Stopping("the worker is stopping", job_id=held.claim.job_id))

    def _tell_node(self, busy: int) -> None:
        self.nodes.beat_process(
            self.settings.node,
            self.boot,
            {
                "id": self.id,
                "name": self.name,
                "stage": self.stage,
                "pid": os.getpid(),
                "slots": self.slots,
                "busy": busy,
                "started_at": self._started_at,
                "handlers": sorted(self.handlers),
            },
        )
        self.gate.beat()
