"""Checking all rows of a file before the first of them is sent, at a size that does not grow with the file.

Given rows and a function that looks at one (and raises `BadInstance`), gives a `Report`: what is bad, with where it
stands; what is there twice. Twice is decided by 64-bit digests: a bit field says which may have been there before, and
only those are kept; a second pass over the rows (`Twice`) counts them exactly.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prorl_celery.data.files import Bad, Row
from prorl_celery.errors import BadInstance

FIELD_BITS = 27
"""16 MiB: of a million rows four thousand are kept for the second pass without need."""
MOST_TOLD = 20
"""Bad rows, and repeated ones, that are told one by one."""


class Seen:
    """Which digests may have been there before."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (FIELD_BITS - 3))
        self.repeated: set[int] = set()
        """All that were there twice, and a few that were not."""

    def add(self, digest: int) -> None:
        at = digest & ((1 << FIELD_BITS) - 1)
        mask = 1 << (at & 7)
        if self._bits[at >> 3] & mask:
            self.repeated.add(digest)
        self._bits[at >> 3] |= mask


class Twice:
    """Counts those digests that may be repeated, and remembers where the first of each stood."""

    def __init__(self, candidates: set[int]) -> None:
        self._candidates = candidates
        self._first: dict[int, str] = {}
        self.count = 0
        self.told: list[str] = []

    def add(self, digest: int, where: str, what: str) -> bool:
        """Another row; whether it repeats one, and then `what` it is to that is told."""
        first = self._first.setdefault(digest, where) if digest in self._candidates else where
        if first == where:
            return False
        self.count += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(f"{where}: {what} {first}")
        return True


@dataclass(slots=True)
class Report:
    """What the rows of a file are like."""

    good: int = 0
    bad: list[Bad] = field(default_factory=list)
    """The first `MOST_TOLD`."""
    bad_rows: array[int] = field(default_factory=lambda: array("Q"))
    """The numbers of all of them, ascending."""
    sources: Counter[str] = field(default_factory=Counter)
    """Good rows by data source."""
    unchecked: Counter[str] = field(default_factory=Counter)
    """Those of them whose handler is not here."""

    @property
    def ends(self) -> bool:
        """Whether the file could not be read to its end."""
        return any(one.ends for one in self.bad[-1:])

    def note(self, bad: Bad) -> None:
        """A row that will not do. One that ends the file is told whatever stands before it."""
        self.bad_rows.append(bad.number)
        if len(self.bad) < MOST_TOLD or bad.ends:
            self.bad.append(bad)


def examine(entries: Iterable[Row | Bad], look: Callable[[dict[str, Any]], tuple[str, bool]]) -> Report:
    """Look at every row. `look` is given a row's value; it gives the data source and whether its handler looked too, or
    raises `BadInstance`.
    """
    report = Report()
    for entry in entries:
        if isinstance(entry, Bad):
            report.note(entry)
            continue
        try:
            source, checked = look(entry.value)
        except BadInstance as error:
            report.note(Bad(entry.number, entry.where, str(error), error.field))
            continue
        report.good += 1
        report.sources[source] += 1
        if not checked:
            report.unchecked[source] += 1
    return report


def without(entries: Iterable[Row | Bad], bad_rows: array[int]) -> Iterator[Row | Bad]:
    """The rows but for those of these numbers, which are ascending, as the rows' own are."""
    at = 0
    for entry in entries:
        while at < len(bad_rows) and bad_rows[at] < entry.number:
            at += 1
        if at == len(bad_rows) or bad_rows[at] != entry.number:
            yield entry


def mapped(entries: Iterable[Row | Bad], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[Row | Bad]:
    """The rows with their values changed; where `change` raises `BadInstance`, a `Bad`."""
    for entry in entries:
        if isinstance(entry, Bad):
            yield entry
            continue
        try:
            yield Row(entry.number, entry.where, change(entry.value))
        except BadInstance as error:
            yield Bad(entry.number, entry.where, str(error), error.field)
