"""`prorl bench`: the benchmarks of this project, on services of their own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from prorl_celery.cli.common import json_option
from prorl_celery.cli.output import print_json


@click.command()
@click.argument("name", type=click.Choice(["pipeline", "tools", "tokens", "dapo", "kinds", "all"]), default="all")
@json_option
@click.option("--quick", is_flag=True, help="Rough figures within a few minutes; some are then absent.")
@click.option(
    "--figure",
    type=click.Path(path_type=Path, file_okay=False),
    help="With `dapo`: draw the slots in use over time into this folder, as dapo-slots.png.",
)
def bench(name: str, as_json: bool, quick: bool, figure: Path | None) -> None:
    """Measure this machine's ProRL on Celery and print the figures with their goals.

    Each benchmark starts a service of its own (Redis, API, workers, sandboxes) and leaves nothing. The "model" is the
    scripted backend, a test double. Take figures on a machine that does nothing else. Exit code 1 when jobs or parts
    failed; a missed goal is none.
    """
    from prorl_celery.bench.dapo.figure import draw, drawing
    from prorl_celery.bench.runs import run
    from prorl_celery.bench.sizes import FULL, QUICK

    if figure is not None:
        if name != "dapo":
            raise click.UsageError("--figure is for `prorl bench dapo`")
        drawing()
    # As an interrupt does: whatever was started is ended, and its folders are removed, on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = run(name, QUICK if quick else FULL)
    if as_json:
        print_json(report.as_json())
    else:
        report.show()
    if figure is not None:
        click.echo(f"drawn: {draw(report, figure)}", err=True)
    sys.exit(1 if report.failed else 0)
