"""Members of indexes, queues, sets and the heap: each must stand there by right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prorl_celery.checking.finding import Finding, findings_of, pages
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.replies import message_of
from prorl_celery.jobs.upkeep import CANCEL_PATIENCE_SECONDS
from prorl_celery.scheduling.batches import PATIENCE_SECONDS
from prorl_celery.settings import Settings

PAGE = 500
"""Members of one script."""

BATCHES = ("batches", "batches_live", "batches_left")
WHOLE = ("leases", "cancels", "expiry", "dead", "stalled", "backends", "revoked", *BATCHES)
PARTS = ("index", "batch", "queued", "on", "assigned", "heap", "joining")

PURGE_SECONDS = 600.0
"""How far the sweep may be behind with what has expired: it purges some hundred jobs a second."""


class Members:
    """Looks into those keys that the keyspace has."""

    name = "members"
    settle_seconds = 0.0

    def __init__(self, run: Callable[..., Any], settings: Settings, known: set[str]) -> None:
        self._run = run
        self._known = known
        # A lease may be given once more after a pause, and its sweep may have much to do.
        lapse = 2 * settings.lease_seconds
        sweeps = 10 * settings.sweep_seconds + 5.0
        self._patience = {
            "leases": lapse + sweeps,
            "cancels": CANCEL_PATIENCE_SECONDS + sweeps,
            "expiry": PURGE_SECONDS,
            "revoked": PATIENCE_SECONDS + sweeps,
            "batches_left": PURGE_SECONDS,
        }

    def look(self) -> Iterator[Finding]:
        """Every member."""
        for name in sorted(self._known):
            if name in WHOLE or name.split(":", 1)[0] in PARTS:
                cursor = b"0"
                while True:
                    found, _, cursor = self._script("look", name, cursor)
                    yield from findings_of(found, name)
                    if cursor == b"0":
                        break

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """These members once more."""
        for name, page in _by_key(findings):
            yield from findings_of(self._script("look", name, "", *page)[0], name)

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Mend these members."""
        messages = []
        for name, page in _by_key(findings):
            messages += [message_of(parts) for parts in self._script("mend", name, "", *page)[1]]
        return messages

    def _script(self, mode: str, name: str, cursor: str | bytes, *members: bytes) -> Any:
        patience = round(1000 * self._patience.get(name, 0.0))
        return self._run("check_members", mode, _raw(name), cursor, PAGE, patience, *members)


def _by_key(findings: Sequence[Finding]) -> Iterator[tuple[str, Sequence[bytes]]]:
    members: dict[str, set[bytes]] = defaultdict(set)
    for finding in findings:
        members[finding.place[0]].add(_raw(finding.place[1]))
    for name, wanted in sorted(members.items()):
        for page in pages(sorted(wanted), PAGE):
            yield name, page


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
