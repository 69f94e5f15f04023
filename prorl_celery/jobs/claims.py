"""What the store's operations give back: accepted jobs, claims, heartbeats, sweeps, pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from prorl_celery.jobs.messages import Message, parse_queue
from prorl_celery.jobs.models import JobRequest, JobStatus, Result, Stage

JSON = Any
CancelOutcome = Literal["ended", "requested", "already_ended"]

SUSPECT_LOSSES = 2
"""Losses without progress between them after which a job runs in a process of its own (`SUSPECT` in `life.lua`)."""


@dataclass(frozen=True, slots=True)
class Created:
    """A job that is accepted. `fresh`: by this call; only then is there a message to publish."""

    job_id: str
    fresh: bool
    message: Message | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on one stage of a job, until the lease lapses or the claim ends. Every write carries its fence.

    `init` and `rollout` are what the earlier stages of this attempt returned. `sandboxes` are those that live on, as
    the committing stage named them. `losses` counts how often the job's process was lost since it last made progress.
    """

    job_id: str
    fence: int
    stage: Stage
    attempt: int
    request: JobRequest
    init: JSON | None = None
    rollout: JSON | None = None
    queue: str = ""
    node: str = ""
    """The node that claimed."""
    process: str = ""
    sandboxes: tuple[str, ...] = ()
    losses: int = 0
    going_on: bool = False
    """The rollout was begun by an earlier claim of this attempt, and goes on with its turn log and its sandboxes."""
    spent_s: float = 0.0
    """Seconds of work in those earlier claims; the stage's deadline spans them all."""
    batch_id: str | None = None
    group_id: str | None = None

    @property
    def suspect(self) -> bool:
        """Whether the job was lost so often that it runs in a process of its own."""
        return self.losses >= SUSPECT_LOSSES

    @property
    def boot(self) -> str | None:
        """The keeper's boot that the job is bound to; None when any node may hold it."""
        parts = parse_queue(self.queue)
        return parts.boot if parts else None


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat's answer: jobs whose claim is gone, jobs that should be cancelled."""

    lost: set[str]
    cancelled: set[str]


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """What a sweep repaired: messages to publish, jobs that it ended, jobs whose results it purged."""

    messages: list[Message] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    purged: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job. `number` rises by one with each, also where older ones were cut.

    `what`: `queued STAGE`, `running STAGE`, `turn N` (a reply is in the log), `call N K` (call K of turn N has ended),
    `handed_back STAGE`, `lost STAGE`, `failed STAGE KIND` (an attempt, and another follows), `stalled STAGE`,
    `cancel_requested`, `retried` or `ended STATE`.
    """

    number: int
    at: str
    what: str


@dataclass(frozen=True, slots=True)
class Page:
    """Statuses, newest first; `next` is the cursor of the page after this one, None at the end."""

    statuses: list[JobStatus]
    next: str | None


@dataclass(frozen=True, slots=True)
class ResultsPage:
    """Results in order of finishing. `truncated`: the cursor was older than the stream, so some were missed."""

    results: list[Result]
    next: str
    truncated: bool
