"""One sandbox of the keeper's, as its other parts know it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.loop import Timer
from prorl_celery.node.keeper.process import SandboxProcess
from prorl_celery.node.keeper.work import ChildWork
from prorl_celery.sandbox.base import SandboxHandle, SandboxSpec
from prorl_celery.sandbox.binds import Bind
from prorl_celery.sandbox.launch import Launch


class Entry:
    """One sandbox, from the moment its start began until all of it is gone."""

    def __init__(self, sandbox_id: str, spec: SandboxSpec, kind: str, nonce: str) -> None:
        self.sandbox_id = sandbox_id
        self.spec = spec
        self.kind = kind
        self.nonce = nonce
        self.started_at = time.monotonic()
        self.process: SandboxProcess | None = None
        self.work: ChildWork | None = None
        self.launch: Launch | None = None
        self.borrows_usr = kind != "singularity"
        """Its /usr is the host's. Of an instance only the child that starts it can tell: its image may not answer."""
        self.binds: tuple[Bind, ...] | None = None
        """Those that it may have, once a child has looked at them (`Kinds.are_bound`)."""
        self.page: int | None = None
        """The memory that its holders share (`prorl_celery.sandbox.page`)."""
        self.holders = 0
        """How many have had it so far."""
        self.ending = False
        self.over = False
        """All of its process has gone."""
        self.lifetime: Timer | None = None
        self.when_gone: list[Callable[[], None]] = []
        self.when_stuck: list[Callable[[], None]] = []
        self.stuck = False
        self.handle: SandboxHandle | None = None

    def listed(self) -> dict[str, Any]:
        """As `KeeperClient.list` gives it."""
        return {
            "sandbox_id": self.sandbox_id,
            "job_id": self.spec.job_id,
            "attempt": self.spec.attempt,
            "fence": self.spec.fence,
            "purpose": self.spec.purpose,
            "kind": self.kind,
            "pid": self.process.pid if self.process else None,
            "starter": self.work.pid if self.work else None,
            "age_s": round(time.monotonic() - self.started_at, 3),
            "stuck": self.stuck,
        }


Started = Callable[[Entry, SandboxError | None], None]
"""Told when a start is done, or what went wrong."""
