"""`prorl check`: recount what the store holds of jobs, and mend what does not add up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.common import json_option, settings_of_service
from prorl_celery.cli.output import print_json, print_table
from prorl_celery.errors import SandboxError
from prorl_celery.settings import Settings


@click.command()
@click.option("--repair", "mend", is_flag=True, help="Mend what is found.")
@json_option
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Of the `prorl up` to check.")
@click.option("--redis", "redis_url", metavar="URL", help="The Redis to check; default: that of the settings.")
@click.option("--node", help="The node whose keeper is asked for its sandboxes.")
def check(mend: bool, as_json: bool, **flags: Any) -> None:
    """Recount jobs against indexes, queues, messages, leases, backends, results, expiry and this node's sandboxes.

    The service may be live or stopped; only its Redis must run. What is found on a live one was seen twice. Without
    --repair nothing is written. The exit code is 1 when something does not add up, or with --repair when something
    would not be mended.
    """
    from prorl_celery.checking import check, repair
    from prorl_celery.store.clients import script_client

    settings = settings_of_service(**flags)
    client = script_client(settings)
    keeper, note = _keeper(settings)
    findings = check(client, settings, keeper)
    left = repair(findings, client, settings, keeper) if mend and findings else findings
    if as_json:
        told = {"findings": [finding.as_dict() for finding in left], "notes": [note] if note else []}
        if mend:
            told["repaired"] = [finding.as_dict() for finding in findings if finding not in left]
        print_json(told)
    else:
        rows = [(f.kind, f.subject, f.message, _outcome(f in left, mend, f.repair)) for f in {*findings, *left}]
        if rows:
            print_table(("kind", "subject", "finding", "repair"), sorted(rows))
        else:
            click.echo("all adds up")
        if note:
            click.echo(f"note: {note}")
    sys.exit(1 if left else 0)


def _outcome(left: bool, mend: bool, repair: str) -> str:
    if not mend:
        return repair
    return f"not mended: {repair}" if left else f"mended: {repair}"


def _keeper(settings: Settings) -> tuple[Any, str | None]:
    """This node's keeper, or why its sandboxes are not looked at."""
    from prorl_celery.sandbox.client import KeeperClient

    keeper = KeeperClient(settings)
    try:
        keeper.status()
    except SandboxError as error:
        return None, f"sandboxes were not looked at: {error}"
    return keeper, None
