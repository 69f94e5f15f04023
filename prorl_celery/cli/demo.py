"""`prorl demo`: a service of its own, real problems through all three stages, figures, and nothing left
behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.api import Api
from prorl_celery.cli.checks import check_scripted
from prorl_celery.cli.jobfile import human_eval_bodies, jobs_of
from prorl_celery.cli.submit import run_jobs
from prorl_celery.errors import ProrlError
from prorl_celery.node import prctl
from prorl_celery.node.orphans import orphans_of
from prorl_celery.node.places import directory
from prorl_celery.node.redis_server import PROGRAMS

READY_S = 150.0
STOP_S = 60.0


class DemoFailed(ProrlError):
    """The demonstration did not go as it should; the message says what was seen."""


@click.command()
@click.option("--problems", type=click.IntRange(1, 164), default=20, show_default=True)
@click.option("--samples", type=click.IntRange(1), default=4, show_default=True)
@click.option("--policy", default="p=0.5", show_default=True, help="Of the scripted backend.")
@click.option("--redis-server", type=click.Choice(["auto", *PROGRAMS]), default="auto", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: out/demo-TIME.")
def demo(problems: int, samples: int, policy: str, redis_server: str, out: Path | None) -> None:
    """Run HumanEval problems through a service started for it, show figures, stop it, check that nothing is
    left.

    The "model" is the scripted backend, a test double that knows the canonical solutions and writes one, or a
    wrong program, by the toss of a coin. The sandboxes, the tools, the tests and the rewards are real.
    """
    place = (out or Path("out") / time.strftime("demo-%Y%m%d-%H%M%S")).absolute()
    check_scripted(policy, "human-eval", "0")
    directory(place)
    prctl.adopt_orphans()  # what the service should leave behind becomes ours, and is seen
    trajectories = place / "trajectories.jsonl"
    began = time.monotonic()
    click.echo("starting Redis, the API, the workers and the scripted backend (a test double, no model) ...")
    with running_service(place / "service", "--scripted", policy, "--redis-server", redis_server) as url:
        click.echo(f"ready: {url} after {time.monotonic() - began:.1f} s; {problems} problems x {samples} samples")
        tally = run_jobs(
            Api(url, patience=30.0),
            lambda: jobs_of(islice(human_eval_bodies(), problems), samples=samples, run="demo"),
            trajectories,
        )
        leaked = Api(url).get("v1", "status")["leaked_sandboxes"]
    if left := orphans_of(os.getpid(), known=()):
        raise DemoFailed(f"processes were left behind: {left}")
    tally.show()
    click.echo(f"trajectories: {trajectories}")
    click.echo(f"leaked sandboxes: {leaked}; processes left: 0; {time.monotonic() - began:.1f} s in all")
    if tally.states["completed"] != problems * samples or leaked:
        raise DemoFailed(f"not every job completed; the logs are in {place / 'service' / 'logs'}")


@contextmanager
def running_service(
    data_dir: Path, *options: str, ready_seconds: float = READY_S, environ: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A `prorl up` of its own for the time of the block, by default in our environment; gives its url.

    Raises `DemoFailed`.
    """
    argv = [sys.executable, "-P", "-m", "prorl_celery.cli.main", "up", "--port", "0", "--data-dir", str(data_dir)]
    us = os.getpid()
    process = subprocess.Popen(
        [*argv, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=environ,
        preexec_fn=lambda: prctl.die_with_parent(us, signal.SIGTERM),
    )
    try:
        yield _url_when_ready(process, data_dir, ready_seconds)
    finally:
        process.terminate()
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise DemoFailed(f"the service did not stop within {STOP_S:.0f} s") from None
        finally:
            if process.stdout:
                process.stdout.close()
    if code != 0:
        raise DemoFailed(f"the service ended with exit code {code}; its logs are in {data_dir / 'logs'}")


def _url_when_ready(process: subprocess.Popen[bytes], data_dir: Path, ready_seconds: float) -> str:
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    deadline = time.monotonic() + ready_seconds
    said = b""
    while b"\n" not in said:
        piece = b""
        if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            raise DemoFailed(f"the service did not become ready; its logs are in {data_dir / 'logs'}")
        said += piece
    noted: dict[str, Any] = json.loads((data_dir / "service.json").read_text())
    return str(noted["url"])
