"""The results stream: each of its entries is the one that its job names. Whether a job has one, `jobs` tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prorl_celery.checking.finding import Finding, findings_of, pages
from prorl_celery.jobs.messages import Message

PAGE = 500
"""Entries of one script."""


class Told:
    """Looks at the whole stream."""

    name = "results"
    settle_seconds = 0.0

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def look(self) -> Iterator[Finding]:
        """Every entry."""
        at: bytes | str = "-"
        while at:
            found, _, at = self._run("check_results", "look", at, PAGE)
            yield from findings_of(found)

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """These entries once more."""
        for page in pages(_entries(findings), PAGE):
            yield from findings_of(self._run("check_results", "look", "", PAGE, *page)[0])

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Delete these entries where they are still wrong."""
        for page in pages(_entries(findings), PAGE):
            self._run("check_results", "mend", "", PAGE, *page)
        return []


def _entries(findings: Sequence[Finding]) -> list[str]:
    return sorted({finding.place[0] for finding in findings})
