"""`prorl backends`: list, add and remove inference backends."""

from __future__ import annotations

import click

from prorl_celery.cli.common import connect, json_option, service_options
from prorl_celery.cli.output import print_json, print_table


@click.group(invoke_without_command=True)
@service_options
@json_option
@click.pass_context
def backends(ctx: click.Context, url: str | None, token: str | None, as_json: bool) -> None:
    """List the inference backends; `add URL` and `rm URL` change them."""
    api = connect(url, token)
    if ctx.invoked_subcommand is not None:
        ctx.obj = api
        return
    found = api.get("v1", "backends")["backends"]
    if as_json:
        print_json(found)
    else:
        columns = ("url", "model", "kind", "state", "assigned", "weight", "policy_version", "errors", "cache_hit_rate")
        print_table(columns, [[backend.get(column) for column in columns] for backend in found])


@backends.command()
@click.argument("backend_url", metavar="URL")
@click.option("--model", required=True, help="The name it serves the model under.")
@click.option(
    "--kind", type=click.Choice(["vllm", "vllm_generate", "legacy", "chat"]), default="vllm", show_default=True
)
@click.option("--tokenizer", help="The model's tokenizer: a local directory. Needed by all kinds but chat.")
@click.option("--weight", type=float, default=1.0, show_default=True)
@click.option("--api-key", help="What it wants as a bearer token.")
@click.option("--policy-version", type=int)
@click.pass_context
def add(
    ctx: click.Context,
    backend_url: str,
    model: str,
    kind: str,
    tokenizer: str | None,
    weight: float,
    api_key: str | None,
    policy_version: int | None,
) -> None:
    """Register an inference backend, or update the one of that URL."""
    body = {
        "url": backend_url,
        "model": model,
        "kind": kind,
        "tokenizer": tokenizer,
        "weight": weight,
        "api_key": api_key,
        "policy_version": policy_version,
    }
    stored = ctx.obj.post("v1", "backends", body={name: value for name, value in body.items() if value is not None})
    click.echo(f"{stored['url']} is {stored['state']}")


@backends.command()
@click.argument("backend_url", metavar="URL")
@click.option("--now", is_flag=True, help="Move live jobs at their next turn; default: let them finish there.")
@click.pass_context
def rm(ctx: click.Context, backend_url: str, now: bool) -> None:
    """Take an inference backend out."""
    done = ctx.obj.delete("v1", "backends", url=backend_url, mode="now" if now else "drain")
    click.echo(f"{done['url']}: {done['mode']}")
