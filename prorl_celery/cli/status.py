"""`prorl status`: the service at a glance, once or again and again."""

from __future__ import annotations

import sys
from typing import Any

import click

from prorl_celery.cli.common import connect, json_option, service_options
from prorl_celery.cli.nodes import busy_of, state_of
from prorl_celery.cli.output import is_terminal, print_json, print_table
from prorl_celery.node.pause import pause


@click.command()
@service_options
@json_option
@click.option("--watch", is_flag=True, help="Until Ctrl-C.")
@click.option("--every", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds, with --watch.")
def status(url: str | None, token: str | None, as_json: bool, watch: bool, every: float) -> None:
    """Show queues, slots, jobs, nodes, backends and pauses."""
    api = connect(url, token, patience=30.0 if watch else 0.0)
    while True:
        told = api.get("v1", "status")
        if watch and is_terminal():
            click.clear()
        if as_json:
            print_json(told)
        else:
            _show(told)
        if not watch:
            return
        sys.stdout.flush()
        pause(every)


def _show(told: dict[str, Any]) -> None:
    stages = [(name, use["queued"], f"{use['busy']}/{use['slots']}") for name, use in told["stages"].items()]
    print_table(("stage", "queued", "busy"), stages)
    print_table(("jobs", "count"), sorted(told["jobs"].items()))
    nodes = [
        (node["node"], node["boot"], state_of(node), node["sandboxes"], node["leaked"], busy_of(node))
        for node in told["nodes"]
    ]
    print_table(("node", "boot", "state", "sandboxes", "leaked", "busy/slots"), nodes)
    for job in told["stalled_jobs"]:
        stall = job["stalled"] or {}
        click.echo(
            f"stalled: {job['job_id']} in {job['stage']}, at {stall.get('act')} for {stall.get('seconds', 0):.0f} s"
        )
    if told["dead"]:
        click.echo(f"dead letters: {told['dead']} (`prorl jobs --dead`, `prorl retry ID`)")
    if told["counts"]:
        click.echo("so far: " + ", ".join(f"{count} {name}" for name, count in sorted(told["counts"].items())))
    batches = ", ".join(f"{count} {state}" for state, count in told["batches"].items() if count)
    if batches:
        click.echo(f"batches: {batches} (`prorl batch list`)")
    backends = told["backends"]
    click.echo("backends: " + ", ".join(f"{count} {state}" for state, count in backends.items()))
    for held in told["pauses"]:
        model = held["model"] or "all models"
        click.echo(f"paused: {model} ({held['mode']}), for {held['seconds_left']:.0f} s yet")
    for item in told["missing"]:
        click.echo(f"missing: {item}")
