"""`prorl restart`: have the processes of this machine's service replaced, one after the other, while it serves."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.common import json_option, settings_of_service
from prorl_celery.cli.output import print_json
from prorl_celery.cli.supervising import note_of
from prorl_celery.errors import SettingsError
from prorl_celery.node.pause import pause
from prorl_celery.sandbox.owner import Owner

EVERY_S = 0.1
BUSY = ("trying", "replacing")


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Of the `prorl up` to restart.")
@click.option("--node", help="Node name of the `prorl worker` to restart.")
@click.option("--timeout", type=click.FloatRange(1.0), default=600.0, show_default=True, help="Seconds to wait for it.")
@json_option
def restart(timeout: float, as_json: bool, **flags: Any) -> None:
    """Restart the service of this machine without a pause: new code, the same jobs.

    Its program is tried first; where that does not start, nothing changes. Redis and the keeper with its sandboxes are
    kept, so that rollouts go on where they are. Settings are those that it was started with. The exit code is 1 where
    not all processes could be replaced.
    """
    note = note_of(settings_of_service(**flags))
    before = _read(note)
    try:
        os.kill(before["pid"], signal.SIGUSR1)
    except PermissionError:
        raise SettingsError(f"the service (pid {before['pid']}) is another user's") from None
    wanted = before["restarts"] + (2 if before["state"] in BUSY else 1)
    deadline = time.monotonic() + timeout
    told = before
    while told["restarts"] < wanted or told["state"] in BUSY:
        if time.monotonic() >= deadline:
            raise SettingsError(f"not restarted within {timeout:.0f} s: {told['state']}, {told['outdated']} to go")
        pause(EVERY_S)
        told = _read(note)
    if as_json:
        print_json({name: told[name] for name in ("pid", "state", "error", "outdated")})
    elif told["state"] != "failed":
        click.echo("restarted")
    if told["state"] == "failed":
        click.echo(f"prorl: not restarted: {told['error']}", err=True)
        sys.exit(1)


def _read(note: Path) -> dict[str, Any]:
    """What the supervisor says. Raises `SettingsError` where there is none."""
    try:
        told: dict[str, Any] = json.loads(note.read_text())
        alive = Owner(*map(int, told["owner"].split("-"))).fate != "dead"
    except FileNotFoundError:
        alive = False
    if not alive:
        raise SettingsError(f"no `prorl up` or `prorl worker` runs here ({note})")
    return told
