"""Progress of a pull: a bar in a terminal; elsewhere a line for each image that is pulled or fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import click

from prorl_celery.cli.output import is_terminal, seconds
from prorl_celery.images.pull import Outcome


def follow(outcomes: Iterable[Outcome], total: int) -> list[Outcome]:
    """Show outcomes as they come; those that failed."""
    return _bar(outcomes, total) if is_terminal() else _lines(outcomes, total)


def _lines(outcomes: Iterable[Outcome], total: int) -> list[Outcome]:
    counts: Counter[str] = Counter()
    failed = []
    for outcome in outcomes:
        counts[outcome.state] += 1
        if outcome.state == "failed":
            failed.append(outcome)
        if outcome.state != "there":
            size = f", {outcome.bytes / 1e6:.0f} MB" if outcome.bytes else ""
            place = f"{counts.total()}/{total}"
            click.echo(f"{place} {outcome.name}: {outcome.state} in {seconds(outcome.seconds)}{size}")
    click.echo(_summary(counts))
    return failed


def _bar(outcomes: Iterable[Outcome], total: int) -> list[Outcome]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counts: Counter[str] = Counter()
    failed = []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[line]}"), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=total, line="")
        for outcome in outcomes:
            counts[outcome.state] += 1
            if outcome.state == "failed":
                failed.append(outcome)
                progress.console.print(f"{outcome.name}: failed", markup=False, highlight=False)
            progress.update(task, completed=counts.total(), line=_summary(counts))
    return failed


def _summary(counts: Counter[str]) -> str:
    said = (("pulled", "pulled"), ("there", "already there"), ("failed", "failed"))
    return ", ".join(f"{counts[state]} {words}" for state, words in said)
