"""`prorl soak`: many jobs through a service of its own, whose parts are killed all the while."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from prorl_celery.cli.common import json_option
from prorl_celery.cli.output import print_json, print_table

GOALS = {
    "ended_once": "all",
    "duplicated": "0",
    "wrong_rewards": "0",
    "turns_redone": "0",
    "recovery_s_p99": "< 30",
    "leaked_sandboxes": "0",
    "keys_left": "0",
    "checker_findings": "0",
}
"""What the figures are to be."""


@click.command()
@click.option("--jobs", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--kill-every", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Seconds, on average.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the jobs and of the kills.")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="Copy the service's logs there.")
@json_option
def soak(jobs: int, kill_every: float, seed: int, logs: Path | None, as_json: bool) -> None:
    """Kill parts of a busy service, and count what its jobs came to.

    The service (Redis with an append-only file, API, workers, keeper, default settings) and four scripted backends are
    its own, and gone afterwards. Workers of all stages, the upkeep, the API, Redis and the backends are killed with -9
    at random, the keeper now and then; the jobs are problems with tests in a sandbox, sums, and agents of several
    turns whose commands must not run twice. Exit code 1 when a job did not end exactly once, or something is left.
    """
    from prorl_celery.bench.soak.plan import Plan
    from prorl_celery.bench.soak.run import soak as run

    # As an interrupt does: whatever was started is ended, and its folders are removed, on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    plan = Plan(jobs=jobs, kill_every=kill_every, seed=seed)
    account = run(plan, lambda word: click.echo(f"soak: {word}", err=True), logs)
    if as_json:
        print_json({"seed": seed, "kill_every": kill_every, **account.figures, "notes": account.notes})
    else:
        rows = [(name, _cell(value), GOALS.get(name, "")) for name, value in account.figures.items()]
        print_table(("figure", "value", "goal"), rows, title=f"soak: {jobs} jobs, a kill every {kill_every:g} s")
        for note in account.notes:
            click.echo(f"  {note}")
    sys.exit(0 if account.good else 1)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in sorted(value.items())) or "none"
    return str(value)
