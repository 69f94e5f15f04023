"""Batches of prompts: what each counts, its groups, and what belongs to none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prorl_celery.checking.finding import Finding, findings_of, pages
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.replies import message_of

PAGE = 50
"""Keys of one script; a batch has one key for each prompt that it started."""

LISTS = ("dapo_prompts", "dapo_names", "dapo_specs", "dapo_waiting", "dapo_open", "dapo_won")
ORDER = ("members", "group", "dapo", *LISTS)
"""Which are looked at, and mended, first: what a batch counts comes after its groups, what is left over at the end."""


class Batches:
    """Looks at the batches that the keyspace has."""

    name = "batches"
    settle_seconds = 0.0

    def __init__(self, run: Callable[..., Any], known: set[str]) -> None:
        self._run = run
        self._known = known

    def look(self) -> Iterator[Finding]:
        """All of them."""
        yield from self._findings(self._known)

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """These keys once more."""
        return self._findings(_names(findings))

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Mend what these keys hold."""
        messages = []
        for page in _pages(_names(findings)):
            messages += [message_of(parts) for parts in self._run("check_batches", "mend", *page)[1]]
        return messages

    def _findings(self, names: Iterable[str]) -> Iterator[Finding]:
        for page in _pages(names):
            yield from findings_of(self._run("check_batches", "look", *page)[0])


def _names(findings: Sequence[Finding]) -> set[str]:
    return {finding.place[0] for finding in findings}


def _pages(names: Iterable[str]) -> Iterator[Sequence[str]]:
    found = sorted(names)
    for first in ORDER:
        # A batch's groups are looked at with it: one at a time.
        yield from pages([name for name in found if name.startswith(first + ":")], 1 if first == "dapo" else PAGE)
