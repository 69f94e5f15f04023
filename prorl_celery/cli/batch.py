"""`prorl batch`: batches of prompts, listed, watched while they fill, cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from prorl_celery.cli.common import connect, json_option, service_options
from prorl_celery.cli.output import is_terminal, print_json, print_table, seconds
from prorl_celery.node.pause import pause

LIVE = ("filling", "waiting_for_prompts")
COUNTED = ("pending", "inflight", "informative", "uniform_0", "uniform_1", "failed", "revoked", "carried")


@click.group()
def batch() -> None:
    """Batches of prompts, filled with groups whose rewards differ."""


@batch.command("list")
@service_options
@json_option
def list_(url: str | None, token: str | None, as_json: bool) -> None:
    """List the last batches, newest first."""
    told = connect(url, token).get("v1", "batches")
    if as_json:
        print_json(told)
        return
    rows = [
        (one["batch_id"], one["state"], f"{one['groups']['informative']}/{one['target_groups']}", one["jobs"]["live"])
        for one in told["batches"]
    ]
    print_table(("batch", "state", "groups", "live jobs"), rows)


@batch.command()
@service_options
@json_option
@click.argument("batch_id")
def show(url: str | None, token: str | None, as_json: bool, batch_id: str) -> None:
    """Show how far a batch has come, and what was thrown away."""
    told = connect(url, token).get("v1", "batches", batch_id)
    if as_json:
        print_json(told)
    else:
        _show(told)


@batch.command()
@service_options
@click.argument("batch_id")
@click.option("--every", type=click.FloatRange(0.2), default=1.0, show_default=True, help="Seconds.")
def watch(url: str | None, token: str | None, batch_id: str, every: float) -> None:
    """Follow a batch until it has ended: bars for groups and jobs, the rate of informative groups, the time left."""
    api = connect(url, token, patience=30.0)

    def looks() -> Iterator[dict[str, Any]]:
        while True:
            told = api.get("v1", "batches", batch_id)
            yield told
            if told["state"] not in LIVE:
                return
            pause(every)

    last: dict[str, Any] = {}
    if is_terminal():
        last = _bars(looks())
    else:
        for last in looks():
            click.echo(_line(last))
    _show(last)


@batch.command()
@service_options
@click.argument("batch_id")
def cancel(url: str | None, token: str | None, batch_id: str) -> None:
    """Cancel all of a batch."""
    told = connect(url, token).delete("v1", "batches", batch_id)
    click.echo(f"{batch_id} is {told['state']}")


def _line(told: dict[str, Any]) -> str:
    groups = told["groups"]
    rate = "-" if told["informative_rate"] is None else f"{told['informative_rate']:.2f}"
    return (
        f"{told['state']}: {groups['informative']} of {told['target_groups']} groups, {groups['inflight']} in flight, "
        f"{told['jobs']['live']} jobs live, informative rate {rate}, left about {seconds(told['seconds_to_target'])}"
    )


def _bars(looks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[line]}"))
    told: dict[str, Any] = {}
    with Progress(*columns) as progress:
        groups = progress.add_task("groups", total=1, line="")
        jobs = progress.add_task("jobs", total=1, line="")
        for told in looks:
            ended = told["jobs"]["started"] - told["jobs"]["live"]
            progress.update(
                groups,
                total=told["target_groups"],
                completed=told["groups"]["informative"],
                line=f"{told['state']}, left about {seconds(told['seconds_to_target'])}",
            )
            rate = told["informative_rate"]
            progress.update(
                jobs,
                total=max(1, told["jobs"]["started"]),
                completed=ended,
                line=f"{told['jobs']['live']} live, informative rate {'-' if rate is None else f'{rate:.2f}'}",
            )
    return told


def _show(told: dict[str, Any]) -> None:
    click.echo(_line(told))
    print_table(("groups", "count"), [(name, told["groups"][name]) for name in COUNTED])
    rows = [(why, f"{spent['seconds']:.0f}", spent["tokens"]) for why, spent in told["waste"].items()]
    print_table(("thrown away", "seconds", "tokens"), rows)
