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


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, numbers: bool = False
) -> None:
    """A table in a terminal; else a line of column names and a line per row, tab-separated.

    `numbers`: all columns but the first hold numbers, whose points stand below each other.
    """
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

    if numbers:
        words, *columns_of_numbers = zip(*cells, strict=True)
        cells = [list(row) for row in zip(words, *map(aligned, columns_of_numbers), strict=True)]
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and index else "left")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))  # Text: what a job says is no markup
    Console().print(table)


def aligned(numbers: Sequence[str]) -> list[str]:
    """Numbers of one column, with blanks for the decimals that others have more of."""
    decimals = [len(number.partition(".")[2]) + ("." in number) for number in numbers]
    return [number + " " * (max(decimals) - count) for number, count in zip(numbers, decimals, strict=True)]


def seconds(value: float | None) -> str:
    """A duration to read: 12 ms, 3.4 s, 5 min 10 s."""
    if value is None:
        return "-"
    if value < 1.0:
        return f"{value * 1000:.0f} ms"
    if value < 100.0:
        return f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"
