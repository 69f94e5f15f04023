"""A stage process for one job at a time: what the stages are given, with stand-ins where the service has Redis."""

from __future__ import annotations

import threading
from typing import cast

from prorl_celery.handlers.base import Handler
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.rewards.servers import RewardServers
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.scheduling.policy import PolicyRegistry
from prorl_celery.settings import Settings
from prorl_celery.testing.local.registries import LocalBackends, LocalNodes, LocalPolicy
from prorl_celery.testing.local.store import LocalStore
from tasks.beat import Beat
from tasks.clock import DeadlineThread
from tasks.gate import PolicyGate
from tasks.nursery import Nursery
from tasks.process import StageProcess
from tasks.signals import Bell
from tasks.warden import Warden
from tasks.watch import BackendWatch

BOOT = "local"


class LocalProcess(StageProcess):
    """The parts of a `StageProcess` that the stages use. It has neither Celery's application nor a heartbeat.

    Each stage gets a handler of its own, as in the service, where the stages are different processes.
    """

    def __init__(self, handler: type[Handler], settings: Settings, nursery: Nursery, keeper: KeeperClient) -> None:
        self.handler = handler
        self.stage = "init"
        self.boot = BOOT
        self.settings = settings
        self.name = self.id = "local-0"
        self.slots = 1
        self.nursery = nursery
        self.keeper = keeper
        self.models = ModelLoop()
        self.rewards = RewardServers()
        self.deadlines = DeadlineThread()
        self.backends_bell = Bell()
        self.local_backends = LocalBackends()
        self.backends = cast(BackendRegistry, self.local_backends)
        self.nodes = cast(NodeRegistry, LocalNodes())
        self.gate = PolicyGate(cast(PolicyRegistry, LocalPolicy()), self.id, settings.backend_wait_seconds)
        self.watch = BackendWatch(self.backends, self.models)
        self.giving_back = threading.Event()
        self.retiring = False
        self.draining = False
        self.stuck: str | None = None
        """Why the process could not go on: a stage that does not stop, or a nursery that has died."""
        self.gave_up = threading.Event()
        self.warden = Warden(self)

    def start(self) -> None:
        self.deadlines.start()
        self.warden.start()

    def begin(self, store: LocalStore) -> None:
        """From now on it works on this store's job."""
        self.store = cast(JobStore, store)
        self.beat = Beat(self.store, self.settings.heartbeat_seconds, self.settings.stall_seconds)

    def next_stage(self) -> None:
        """What the handler kept on itself is gone, as it is in the service."""
        handler = self.handler()
        self.handlers = HandlerRegistry(dict.fromkeys((handler.data_source, *handler.aliases), handler))

    def retire(self, why: str) -> None:
        """There is no successor: whoever waits for the job is told."""
        self.stuck = self.stuck or why
        self.gave_up.set()

    def publish(self, message: Message) -> None:
        """Nothing: the store has it."""

    def stop(self) -> None:
        self.giving_back.set()
        for stop in (self.warden.stop, self.deadlines.stop, self.models.stop, self.nursery.close):
            stop()
