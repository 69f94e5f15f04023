"""Ways to run a command (or a cell), the same commands through each, and what each costs.

Ways that hold a terminal open are measured in turns, command by command: whatever else the machine does then hits all
of them alike, and a ratio of their medians stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from prorl_celery.bench.report import FAILURES, BenchFailed, Report
from prorl_celery.bench.tools.own_use import own_use

COMMANDS = ("true", "echo hi", "ls", "cd /tmp && pwd")
"""In this order: `ls` has an empty folder to list until `cd` leaves it."""
SAYS = {"echo hi": "hi", "cd /tmp && pwd": "/tmp", "1+1": "2"}
OUTPUT_BYTES = 10_000_000
OUTPUT_COMMAND = f"yes 0123456789abcdef0123456789abcdef0123456789abcde | head -c {OUTPUT_BYTES}"
COMMAND_SECONDS = 10.0
OUTPUT_SECONDS = 60.0


class Way(Protocol):
    """One way to run commands, ready to run the next."""

    @property
    def copied_bytes(self) -> int | None:
        """What it has copied so far from one buffer of this process to another; None where that is not known."""
        ...

    def run(self, command: str, *, timeout: float) -> str:
        """Run a command, at most `timeout` seconds; return what it printed. Raises `BenchFailed` unless it exits 0."""
        ...


Opening = Callable[[], AbstractContextManager[Way]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What ten megabytes of output cost: seconds, bytes read and copied by this process, growth of its memory."""

    seconds: float
    read_bytes: int
    copied_bytes: int | None
    grown_bytes: int


@dataclass(slots=True)
class Row:
    """What was seen of one way. `key` names its figures, `label` its line of the table."""

    key: str
    label: str
    start_ms: float | None = None
    """From nothing until a first command has ended."""
    took_ms: dict[str, list[float]] = field(default_factory=dict)
    output: Output | None = None
    lacks: str | None = None
    """Why it was given up, or not tried."""

    @contextmanager
    def given_up_on_failure(self, report: Report) -> Iterator[None]:
        """A failure within the block is this row's alone: the others go on."""
        try:
            yield
        except FAILURES as error:
            self.lacks = report.count_failure(self.label, error)

    def start(self, opening: Opening, stack: ExitStack, first: str) -> Way:
        """Open a way, until the stack is closed, and have it run a first command."""
        began = time.perf_counter()
        way = stack.enter_context(opening())
        way.run(first, timeout=COMMAND_SECONDS)
        self.start_ms = (time.perf_counter() - began) * 1000
        return way

    def time(self, way: Way, command: str) -> None:
        """Run a command once more. Raises `BenchFailed` when it did not say what it should."""
        began = time.perf_counter()
        said = way.run(command, timeout=COMMAND_SECONDS)
        took = time.perf_counter() - began
        if said.strip() != SAYS.get(command, said.strip()):
            raise BenchFailed(f"{self.label}: `{command}` said {said[-200:]!r}")
        self.took_ms.setdefault(command, []).append(took * 1000)

    def print_much(self, way: Way) -> None:
        """Run what prints ten megabytes."""
        copied = way.copied_bytes
        began = time.perf_counter()
        with own_use() as use:
            way.run(OUTPUT_COMMAND, timeout=OUTPUT_SECONDS)
        self.output = Output(
            seconds=time.perf_counter() - began,
            read_bytes=use.read_bytes,
            copied_bytes=None if copied is None or way.copied_bytes is None else way.copied_bytes - copied,
            grown_bytes=use.grown_bytes,
        )


def in_turns(report: Report, ways: Sequence[tuple[Row, Opening]], counts: Mapping[str, int], *, output: bool) -> None:
    """Fill the rows: start each way, have it print ten megabytes (with `output`), then run each command so many times,
    in turns.

    A way that fails is given up, with the reason in its row and in the report. One whose row lacks something already
    is not tried.
    """
    with ExitStack() as stack:
        opened: list[tuple[Row, Way]] = []
        for row, opening in ways:
            if row.lacks is not None:
                continue
            with row.given_up_on_failure(report):
                opened.append((row, row.start(opening, stack, next(iter(counts)))))
        for row, way in opened if output else ():
            with row.given_up_on_failure(report):
                row.print_much(way)
        for command, count in counts.items():
            for _ in range(count):
                for row, way in opened:
                    if row.lacks is None:
                        with row.given_up_on_failure(report):
                            row.time(way, command)
