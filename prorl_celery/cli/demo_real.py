"""`prorl demo-real`: a small real model, sampled on this machine's processor, through the whole service.

30 one-digit additions x 8 samples are `math` jobs of one turn. The model, SmolLM2-135M-Instruct, gets about a third of
them right, and most groups mixed: real sampling, real token ids and log-probabilities, rewards that differ.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.api import Api
from prorl_celery.cli.common import settings_with
from prorl_celery.cli.demo import DemoFailed, running_service
from prorl_celery.cli.jobfile import jobs_of
from prorl_celery.cli.output import print_table, seconds
from prorl_celery.cli.sampled import Sampled, read_sampled
from prorl_celery.cli.submit import run_jobs
from prorl_celery.node import prctl
from prorl_celery.node.orphans import orphans_of
from prorl_celery.node.places import directory
from prorl_celery.node.vllm.install import prepare

MODEL = "smollm2"
MAX_TOKENS = 64
READY_S = 450.0
"""What `prorl up --model` allows itself, and a little."""


@click.command()
@click.option("--problems", type=click.IntRange(1, 81), default=30, show_default=True)
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0, 10.0), default=0.8, show_default=True)
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the model is kept.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: out/demo-real-TIME.")
def demo_real(problems: int, samples: int, temperature: float, data_dir: Path | None, out: Path | None) -> None:
    """Prepare SmolLM2-135M, serve it with vLLM, run one-digit additions through a service started for it, stop all.

    The first time takes 2.5 GB of disk and a few minutes (see `prorl models`). It fails when a job fails, when a
    result lacks a reward, or when token ids and log-probabilities do not match.
    """
    place = (out or Path("out") / time.strftime("demo-real-%Y%m%d-%H%M%S")).absolute()
    service = place / "service"
    directory(service)
    prctl.adopt_orphans()  # what the service should leave behind becomes ours, and is seen
    settings, _ = settings_with(data_dir=data_dir)
    prepare(MODEL, settings.data_dir, torch_index=settings.torch_index, say=click.echo)
    _lend_model(settings.data_dir.absolute(), service)
    trajectories = place / "trajectories.jsonl"
    began = time.monotonic()
    click.echo("starting Redis, the API, the workers, and vLLM with the model: about a minute ...")
    with running_service(service, "--model", MODEL, ready_seconds=READY_S) as url:
        click.echo(f"ready: {url} after {time.monotonic() - began:.0f} s; {problems} additions x {samples} samples")
        started = time.monotonic()
        sampling = {"model": MODEL, "temperature": temperature, "max_tokens": MAX_TOKENS}
        tally = run_jobs(
            Api(url, patience=30.0),
            lambda: jobs_of(
                additions(problems), samples=samples, run="demo-real", sampling_params=sampling, agent={"max_turns": 1}
            ),
            trajectories,
        )
        took = time.monotonic() - started
    if left := orphans_of(os.getpid(), known=()):
        raise DemoFailed(f"processes were left behind: {left}")
    sampled = read_sampled(trajectories)
    tally.show()
    _show(sampled, took)
    click.echo(f"trajectories: {trajectories}")
    click.echo(f"processes left: 0; {time.monotonic() - began:.0f} s in all")
    if tally.states["completed"] != problems * samples:
        raise DemoFailed(f"not every job completed; the logs are in {service / 'logs'}")
    if sampled.faults:
        raise DemoFailed(f"{len(sampled.faults)} results are wrong, among them: {'; '.join(sampled.faults[:3])}")


def additions(count: int) -> Iterator[dict[str, Any]]:
    """The first `count` of the 81 sums of two digits, in an order that is always the same."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    random.Random(0).shuffle(pairs)
    for a, b in pairs[:count]:
        problem = f"What is {a}+{b}? Answer with a number."
        instance = {"data_source": "math", "instance_id": f"{a}+{b}", "problem": problem, "answer": a + b}
        yield {"instance": instance, "agent": {"tools": []}}


def _lend_model(data_dir: Path, service: Path) -> None:
    """Let the demonstration's service find what is prepared in `data_dir`, rather than make it again."""
    for name in ("vllm-env", "models"):
        link = service / name
        if not link.exists():
            link.symlink_to(data_dir / name)


def _show(sampled: Sampled, took: float) -> None:
    groups = f"{sampled.mixed} mixed, {sampled.all_wrong} all wrong, {sampled.all_right} all right"
    print_table(
        ("the model", "value"),
        [
            ("groups", groups),
            ("tokens sampled", sampled.tokens),
            ("tokens a second", f"{sampled.tokens / max(took, 1e-9):.0f}"),
            ("from the first job to the last result", seconds(took)),
        ],
    )
