"""What a check finds, and what would mend it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from prorl_celery.jobs.messages import Message

Item = TypeVar("Item")

KINDS = {
    # Records
    "broken-record": "fill in what can be known, and end the job as failed where it had not ended",
    "wrong-type": "delete the key; what it held is made anew from the jobs' records",
    "unknown-key": "delete the key",
    "orphan": "delete the key",
    "no-request": "end the job as failed, or let its result expire",
    "no-output": "start the attempt over from init, uncharged",
    "turn-count": "count the log anew; without a log, start the attempt over, uncharged",
    # Indexes
    "not-indexed": "list the job",
    "not-in-batch": "list the job",
    "stray-index": "take it off the list",
    "stray-batch": "take it off the list",
    # Queues
    "not-queued": "queue the job and publish its message",
    "stray-queued": "take it out of the queue",
    "queue-unlisted": "list the queue",
    "message-lost": "publish the message again",
    "stray-list": "delete the broker's list",
    "stray-binding": "delete the broker's binding",
    "stray-passed": "forget it",
    "sequence": "count on from the highest",
    # Running jobs
    "no-lease": "give it a lease, which its worker renews or the sweep takes away",
    "stray-lease": "delete the lease",
    "overdue-lease": "sweep",
    "cancel-unlisted": "list the cancel",
    "stray-cancel": "take it off the list",
    "overdue-cancel": "sweep",
    "not-placed": "list it on its node",
    "stray-placed": "take it off the node",
    "still-placed": "take it off the node",
    "stray-stall": "take it off the list",
    "stall-unlisted": "list the stall",
    # Backends
    "backend-held": "give the backend's slot back",
    "not-assigned": "count the job at its backend",
    "stray-assigned": "strike it from the backend's count",
    "stray-heap": "give it to no more jobs",
    "heap-score": "weigh the backend anew",
    "not-in-heap": "let it be given to jobs",
    "stray-joining": "forget it",
    # Ends
    "expires-early": "keep it until the job has ended",
    "no-expiry": "let it expire",
    "not-expiring": "let the result expire",
    "stray-expiry": "take it off the list",
    "overdue-expiry": "sweep",
    "not-dead": "list it as a dead letter",
    "stray-dead": "take it off the list",
    "not-told": "add it to the results stream",
    "told-twice": "delete the later entry",
    "told-of-none": "delete the entry",
    # Batches
    "broken-batch": "cancel it",
    "batch-count": "count anew, and start what there is room for",
    "batch-unlisted": "list it",
    "stray-batches": "take it off the list",
    "overdue-left": "sweep",
    "broken-group": "give the group up, and start another in its place",
    "lost-prompts": "start none of them",
    "lost-group": "list it with its batch, or revoke its jobs and delete it",
    "stray-group": "take it off the list",
    "group-left": "give its groups up",
    "not-member": "let its group count on it",
    "stray-member": "let its group count on it no more",
    "stray-parked": "queue the job and publish its message",
    "not-revoked": "revoke the job",
    "stray-revoked": "take it off the list",
    "overdue-revoked": "sweep",
    # The fleet
    "stray-node": "delete it",
    "count": "count anew from 0",
    "stray-sandbox": "end the sandbox",
    "no-sandbox": "start the attempt over from init, uncharged",
}
"""Every kind of finding -> what `repair` does."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not add up: a kind of `KINDS`, what it is about (a job, a key), and words."""

    kind: str
    subject: str
    message: str
    mark: str = field(default="", repr=False, compare=False)
    """Another when its job has been claimed or queued since: it must be seen again to count."""
    place: tuple[str, ...] = field(default=(), repr=False)
    """Where its area looks for it again."""
    area: str = field(default="", repr=False, compare=False)
    """The area that found it."""

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same finding of another look."""
        return self.kind, self.subject, self.place

    @property
    def repair(self) -> str:
        """What `repair` does about it."""
        return KINDS[self.kind]

    def as_dict(self) -> dict[str, str]:
        """As it is printed."""
        return {"kind": self.kind, "subject": self.subject, "message": self.message, "repair": self.repair}


class Area(Protocol):
    """A part of the store that is checked by itself. Everything raises `StoreUnavailable`."""

    name: str
    settle_seconds: float
    """How long what it finds may be passing."""

    def look(self) -> Iterable[Finding]:
        """All that does not add up now, in pages."""
        ...

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """Which of these are still there; there may be new ones about the same subjects."""
        ...

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Put right what is still wrong about these subjects; messages to publish."""
        ...


def findings_of(reply: Iterable[Any], *place: str) -> list[Finding]:
    """The findings of a script's reply; each is looked for again by the place and by what the script was looking at."""
    found = []
    for parts in reply:
        kind, subject, text, mark, about = (part.decode(errors="surrogateescape") for part in parts)
        found.append(Finding(kind, shown(subject), shown(text), mark, (*place, about)))
    return found


def shown(name: str) -> str:
    """A name that can be printed, whatever bytes it holds."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def pages(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items, so many at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))
