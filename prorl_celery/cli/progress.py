"""Progress of a run: a bar in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import click

from prorl_celery.cli.output import is_terminal
from prorl_celery.cli.report import Tally

EVERY_S = 5.0


def follow(results: Iterable[dict[str, Any] | None], tally: Tally) -> None:
    """Count results into `tally` as they come (None is a moment without one), showing how far it is."""
    if is_terminal():
        _bar(results, tally)
    else:
        _lines(results, tally)


def _lines(results: Iterable[dict[str, Any] | None], tally: Tally) -> None:
    due = time.monotonic() + EVERY_S
    for result in results:
        if result is not None:
            tally.add(result)
        if time.monotonic() >= due:
            click.echo(tally.line(), err=True)
            due = time.monotonic() + EVERY_S
    click.echo(tally.line(), err=True)


def _bar(results: Iterable[dict[str, Any] | None], tally: Tally) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.fields[line]}"), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=tally.total, completed=tally.done, line=tally.line())
        for result in results:
            if result is not None:
                tally.add(result)
            progress.update(task, completed=tally.done, line=tally.line())
