"""Jobs: each one's record against the indexes, its lease, its queue, its backend, its data and their expiry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prorl_celery.checking.finding import Finding, findings_of, pages
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.replies import message_of

PAGE = 100
"""Jobs of one script: a few milliseconds of Redis's time."""


class Jobs:
    """Looks at all jobs that the keyspace has."""

    name = "jobs"
    settle_seconds = 0.0

    def __init__(self, run: Callable[..., Any], known: set[str]) -> None:
        self._run = run
        self._known = known

    def look(self) -> Iterator[Finding]:
        """Every job."""
        for page in pages(sorted(self._known), PAGE):
            yield from findings_of(self._run("check_jobs", "look", *page)[0])

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """These jobs once more."""
        for page in pages(_subjects(findings), PAGE):
            yield from findings_of(self._run("check_jobs", "look", *page)[0])

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Mend these jobs."""
        messages = []
        for page in pages(_subjects(findings), PAGE):
            messages += [message_of(parts) for parts in self._run("check_jobs", "mend", *page)[1]]
        return messages


def _subjects(findings: Sequence[Finding]) -> list[str]:
    return sorted({finding.place[0] for finding in findings})
