"""What the views work with, in one object: made once by the factory, reached by `services()` within a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from flask import current_app

from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import BackendRegistry
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.scheduling.policy import PolicyRegistry
from prorl_celery.settings import Settings
from web.following import Following
from web.heeding import Heeding
from web.waiters import Waiters

EXTENSION = "prorl"


class Publishing(Protocol):
    """Takes messages for the stages. Raises `StoreUnavailable` when the broker does not take one."""

    def publish_all(self, messages: Sequence[Message]) -> None:
        """Publish them in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The library's objects that this process uses; all are thread-safe."""

    settings: Settings
    store: JobStore
    backends: BackendRegistry
    nodes: NodeRegistry
    policy: PolicyRegistry
    heeding: Heeding
    handlers: HandlerRegistry
    publisher: Publishing
    batches: BatchRegistry
    waiters: Waiters
    following: Following


def services() -> Services:
    """Those of the application that serves this request."""
    return cast(Services, current_app.extensions[EXTENSION])
