"""What the commands print: tables in a terminal, tab-separated lines elsewhere, JSON when asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click


def is_terminal() -> bool:
    """Whether a person looks at stdout."""
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2 if is_terminal() else None, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """A table in a terminal; else a line of column names and a line per row, tab-separated."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if not is_terminal():
        if title:
            click.echo(title)
        for line in [list(columns), *cells]:
            click.echo("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in line))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))  # Text: what a job says is no markup
    Console().print(table)


def seconds(value: float | None) -> str:
    """A duration to read: 12 ms, 3.4 s, 5 min 10 s."""
    if value is None:
        return "-"
    if value < 1.0:
        return f"{value * 1000:.0f} ms"
    if value < 100.0:
        return f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"
