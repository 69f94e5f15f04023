"""`prorl doctor`: what this machine has, what it lacks, and how to get it."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from prorl_celery.cli.common import json_option, settings_with
from prorl_celery.cli.examination import examine
from prorl_celery.cli.output import print_json, print_table


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what this machine lacks and how to get it. The exit code is 1 when something needed is missing."""
    settings, _ = settings_with()
    findings = examine(settings)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(("what", "verdict", "seen"), [(f.what, f.verdict, f.seen) for f in findings])
        for finding in findings:
            if finding.remedy and finding.verdict != "ok":
                click.echo(f"{finding.what}: {finding.remedy}")
    sys.exit(1 if any(finding.verdict == "missing" for finding in findings) else 0)
