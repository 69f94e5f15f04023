"""`prorl nodes`: the machines that run workers, and how one is emptied."""

from __future__ import annotations

from typing import Any

import click

from prorl_celery.cli.common import connect, json_option, service_options
from prorl_celery.cli.output import print_json, print_table


@click.group(invoke_without_command=True)
@service_options
@json_option
@click.pass_context
def nodes(context: click.Context, url: str | None, token: str | None, as_json: bool) -> None:
    """List the nodes, or have one take no new jobs."""
    if context.invoked_subcommand is not None:
        context.obj = url, token
        return
    told = connect(url, token).get("v1", "nodes")["nodes"]
    if as_json:
        print_json(told)
        return
    rows = [(node["node"], node["boot"], state_of(node), node["sandboxes"], busy_of(node)) for node in told]
    print_table(("node", "boot", "state", "sandboxes", "busy/slots"), rows)


@nodes.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let it take new jobs again.")
@service_options
@json_option
@click.pass_context
def drain(context: click.Context, node: str, undo: bool, url: str | None, token: str | None, as_json: bool) -> None:
    """Have a node take no new jobs; what it has is worked off. It is `drained` when nothing is left on it."""
    before_url, before_token = context.obj
    api = connect(url or before_url, token or before_token)
    told = api.post("v1", "nodes", node, "drain", body={"drain": not undo})
    if as_json:
        print_json(told)
    else:
        click.echo(f"{node} takes new jobs again" if undo else f"{node} takes no new jobs")


def state_of(node: dict[str, Any]) -> str:
    """A node's state in a word."""
    if not node.get("draining"):
        return "serving"
    return "drained" if node.get("drained") else "draining"


def busy_of(node: dict[str, Any]) -> str:
    """How many of a node's slots are at work, by stage."""
    busy = node.get("busy", {})
    return " ".join(f"{stage} {busy.get(stage, 0)}/{slots}" for stage, slots in node["slots"].items())
