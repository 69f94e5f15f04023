"""`prorl policy`: hold model calls while new weights are loaded."""

from __future__ import annotations

import sys

import click

from prorl_celery.cli.common import connect, json_option, service_options
from prorl_celery.cli.output import print_json


@click.group()
def policy() -> None:
    """Pause model calls, load weights into the backends, and resume with their version."""


@policy.command()
@service_options
@json_option
@click.option("--abort", is_flag=True, help="Give up the calls in flight; default: let them finish.")
@click.option("--model", help="Default: all models.")
@click.option("--timeout", type=click.FloatRange(0.0, 600.0), default=60.0, show_default=True, help="Seconds to wait.")
@click.option("--ttl", type=click.FloatRange(0.001, 86_400.0), default=600.0, show_default=True, help="Longest pause.")
def pause(
    url: str | None, token: str | None, as_json: bool, abort: bool, model: str | None, timeout: float, ttl: float
) -> None:
    """Hold jobs before their next model call; exit code 1 when calls are still in flight after the time-out."""
    body = {"mode": "abort" if abort else "finish", "model": model, "timeout": timeout, "ttl": ttl}
    told = connect(url, token).post("v1", "policy", "pause", body=body, wait=timeout)
    if as_json:
        print_json(told)
    elif told["complete"]:
        click.echo(f"paused, {told['held']} jobs held")
    else:
        stands = "paused" if told["paused"] else "no longer paused"
        click.echo(f"{stands}, {told['in_flight']} calls in flight", err=True)
    if not told["complete"]:
        sys.exit(1)


@policy.command()
@service_options
@json_option
@click.option("--version", type=click.IntRange(0), help="Of the backends' weights from now on. Default: unchanged.")
@click.option("--model", help="Default: the models that are paused.")
def resume(url: str | None, token: str | None, as_json: bool, version: int | None, model: str | None) -> None:
    """Let held jobs go on."""
    told = connect(url, token).post("v1", "policy", "resume", body={"version": version, "model": model})
    if as_json:
        print_json(told)
    else:
        of = "" if version is None else f", {told['backends']} backends have version {version}"
        click.echo(f"resumed{of}")
