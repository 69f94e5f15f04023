"""`prorl janitor`: what of our services is left over on this machine, and its removal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.common import json_option, settings_of_service
from prorl_celery.cli.output import print_json, print_table
from prorl_celery.errors import SandboxError, StoreError
from prorl_celery.settings import Settings


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is left over, and what became of it."""

    kind: str
    name: str
    whose: str
    outcome: str
    """`found` (of --dry-run), `removed`, or `failed` with the reason."""
    why: str = ""


@click.command()
@click.option("--dry-run", is_flag=True, help="Remove nothing, only tell what would be.")
@json_option
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Of the `prorl up` to look after.")
@click.option("--redis", "redis_url", metavar="URL", help="Of the `prorl worker` to look after.")
@click.option("--node", help="That worker's node name.")
def janitor(dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Remove what services of yours left on this machine: processes, control groups, mounts, sockets, folders of
    keepers that are gone; and, where the service of this directory runs, sandboxes that no live job of its names.

    What belongs to a living keeper, to another user or to a container is never touched. The exit code is 1 when
    something would not go, or when --dry-run found something.
    """
    settings = settings_of_service(**flags)
    logging.getLogger("prorl_celery.node.janitor").setLevel(logging.CRITICAL)  # the table tells it
    notes: list[str] = []
    findings = [*_strays(settings, notes, dry_run), *_leftovers(settings, notes, dry_run)]
    if as_json:
        print_json({"found": [asdict(finding) for finding in findings], "notes": notes})
    else:
        rows = [(f.kind, f.name, f.whose, f"{f.outcome}: {f.why}" if f.why else f.outcome) for f in findings]
        if rows:
            print_table(("kind", "name", "whose", "outcome"), rows)
        else:
            click.echo("nothing is left over")
        for note in notes:
            click.echo(f"note: {note}")
    sys.exit(1 if any(finding.outcome != "removed" for finding in findings) else 0)


def _strays(settings: Settings, notes: list[str], dry_run: bool) -> Iterator[Finding]:
    """Sandboxes of the living keeper that no live job names."""
    from prorl_celery.jobs.store import JobStore
    from prorl_celery.node.janitor.strays import Janitor
    from prorl_celery.sandbox.client import KeeperClient
    from prorl_celery.store.clients import script_client

    keeper = KeeperClient(settings)
    try:
        sandboxes = {one["sandbox_id"]: one for one in keeper.list()}
        strays = Janitor(JobStore(script_client(settings), settings), keeper, settings).find() if sandboxes else []
    except SandboxError as error:
        notes.append(f"only what dead keepers left was looked for: {error}")
        return
    except StoreError as error:
        notes.append(f"which of {len(sandboxes)} sandboxes belong to live jobs cannot be told: {error}")
        return
    for stray in strays:
        outcome, why = "found", ""
        if not dry_run:
            try:
                keeper.stop(stray["sandbox_id"])
                outcome = "removed"
            except SandboxError as error:
                outcome, why = "failed", str(error)
        yield Finding("sandbox", stray["sandbox_id"], f"job {stray['job_id']}, not live here", outcome, why)


def _leftovers(settings: Settings, notes: list[str], dry_run: bool) -> Iterator[Finding]:
    """What keepers and services that are gone left."""
    from prorl_celery.node.janitor.leftovers import Leftovers
    from prorl_celery.node.janitor.thing import Thing
    from prorl_celery.node.janitor.things import inventory
    from prorl_celery.sandbox.client import KeeperClient

    def whose(thing: Thing) -> str:
        return "a service that is gone" if thing.owner is None else f"process {thing.owner.pid}, which is gone"

    leftovers = Leftovers(settings, KeeperClient(settings))
    if dry_run:
        for thing in leftovers.find():
            yield Finding(thing.kind, thing.name, whose(thing), "found")
    else:
        for removal in leftovers.sweep():
            yield Finding(removal.thing.kind, removal.thing.name, whose(removal.thing), removal.outcome, removal.why)
    hidden = [thing for thing in inventory(settings) if thing.fate == "unknown"]
    if hidden:
        notes.append(f"{len(hidden)} things are of keepers in containers, and were left alone")
