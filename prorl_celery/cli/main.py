"""The `prorl` command. Each subcommand is in a module of its own, imported when it is called: `--help`
stays quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

import prorl_celery
from prorl_celery.errors import ProrlError

COMMANDS = {
    "up": ("prorl_celery.cli.up:up", "Run everything on this machine."),
    "demo": ("prorl_celery.cli.demo:demo", "Run 20 HumanEval problems x 4 samples through a service of its own."),
    "demo-real": (
        "prorl_celery.cli.demo_real:demo_real",
        "Run 30 sums x 8 samples by a small real model on this machine's processor.",
    ),
    "models": ("prorl_celery.cli.model:models", "Prepare small real models."),
    "images": ("prorl_celery.cli.images:images", "Build and pull the images that sandboxes start from."),
    "api": ("prorl_celery.cli.parts:api", "Run the HTTP API alone."),
    "restart": ("prorl_celery.cli.restart:restart", "Replace the processes of a running service, one by one."),
    "worker": ("prorl_celery.cli.parts:worker", "Run this node's workers."),
    "flower": ("prorl_celery.cli.parts:flower", "Run Flower on the service's Celery application."),
    "scripted-backend": ("prorl_celery.cli.parts:scripted_backend", "Run the test double of an inference server."),
    "handler": ("prorl_celery.cli.handler:handler", "Write a task kind of your own; try one on an instance."),
    "datasets": ("prorl_celery.cli.datasets:datasets", "Lay out data sets that jobs need more of than a line of JSON."),
    "submit": ("prorl_celery.cli.submit:submit", "Submit jobs of a file, wait, and write the results."),
    "jobs": ("prorl_celery.cli.jobs:jobs", "List jobs, newest first."),
    "show": ("prorl_celery.cli.jobs:show", "Show a job and its trajectory."),
    "events": ("prorl_celery.cli.jobs:events", "Tell what happens to a job."),
    "cancel": ("prorl_celery.cli.jobs:cancel", "Cancel jobs."),
    "retry": ("prorl_celery.cli.jobs:retry", "Give failed jobs a new life."),
    "batch": ("prorl_celery.cli.batch:batch", "List and watch batches of prompts."),
    "nodes": ("prorl_celery.cli.nodes:nodes", "List the nodes; drain one."),
    "backends": ("prorl_celery.cli.backends:backends", "List, add and remove inference backends."),
    "policy": ("prorl_celery.cli.policy:policy", "Pause model calls for new weights, and resume."),
    "status": ("prorl_celery.cli.status:status", "Show queues, slots, nodes and backends."),
    "check": ("prorl_celery.cli.check:check", "Recount what the store holds of jobs, and mend it."),
    "janitor": ("prorl_celery.cli.janitor:janitor", "Remove what dead services left on this machine."),
    "doctor": ("prorl_celery.cli.doctor:doctor", "Say what this machine lacks, and how to get it."),
    "bench": ("prorl_celery.cli.bench:bench", "Measure this service on this machine."),
    "soak": ("prorl_celery.cli.soak:soak", "Kill parts of a busy service, and count what its jobs came to."),
    "config": ("prorl_celery.cli.config:config", "Show the settings and where each comes from."),
    "token": ("prorl_celery.cli.config:token", "Make API tokens."),
}


class Commands(click.Group):
    """A group that imports a subcommand when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(prorl_celery.__version__, prog_name="prorl")
def cli() -> None:
    """Rollout as a service: jobs go through init, rollout and eval; scored trajectories come out."""


def main() -> None:
    """The console script: errors of ours are one line and exit code 1."""
    forget_the_working_directory()
    try:
        cli(prog_name="prorl")
    except ProrlError as error:
        click.echo(f"prorl: {error}", err=True)
        sys.exit(1)


def forget_the_working_directory() -> None:
    """Take the working directory off `sys.path`, so that a `tasks.py` or a `celery.py` there stays the
    user's own.

    Where `PYTHONPATH` names it, it is meant: then it goes last, behind our own modules.
    """
    here = str(Path.cwd())
    ours = str(Path(prorl_celery.__file__).parent.parent)
    if here == ours:
        return
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    meant = here in {os.path.realpath(entry) for entry in named}
    sys.path[:] = [entry for entry in sys.path if entry not in ("", ".", here)] + ([here] if meant else [])


if __name__ == "__main__":
    main()
