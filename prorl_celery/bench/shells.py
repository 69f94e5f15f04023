"""What a shell command costs through the bash tool, inside a sandbox, beside a bare pseudo-terminal and SWE-ReX.

A keeper of its own starts the sandboxes; the benchmark attaches to them as a rollout worker does.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prorl_celery.bench.report import BenchFailed, Report, median
from prorl_celery.bench.sizes import Sizes
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess
from prorl_celery.tools.toolbox import Toolbox

BWRAP_FIGURES = ("bash_bwrap_ms_median", "output_10mb_s", "sandbox_start_ms_bwrap")
SINGULARITY_FIGURES = ("bash_singularity_ms_median", "sandbox_start_ms_singularity")
START_SECONDS = 60.0
TEN_MB = "yes 0123456789abcdef0123456789abcdef0123456789abcde | head -c 10000000"
SKELETON = Path(__file__).parents[2] / "deploy" / "images" / "make_skeleton.sh"


def bwrap(report: Report, settings: Settings, sizes: Sizes) -> None:
    """Bash in bubblewrap: `true` many times, ten million bytes of output, starts."""
    with KeeperProcess(settings) as keeper:
        starts = _starts(keeper, None, sizes.starts)
        with _bash(keeper, None) as toolbox:
            took = _commands(toolbox, sizes.commands)
            began = time.monotonic()
            answer = toolbox.call("bash", {"command": TEN_MB}).content
            output_s = time.monotonic() - began
    if not answer.rpartition("\n")[2].startswith("[exit code 0"):
        raise BenchFailed(f"ten megabytes of output ended in {answer[-200:]!r}")
    report.figures["bash_bwrap_ms_median"] = median(took)
    report.figures["output_10mb_s"] = output_s
    report.figures["sandbox_start_ms_bwrap"] = median(starts)


def in_singularity(report: Report, settings: Settings, sizes: Sizes) -> None:
    """Bash in a Singularity instance of the skeleton image."""
    with _skeleton() as image, KeeperProcess(settings) as keeper:
        starts = _starts(keeper, image, sizes.starts)
        with _bash(keeper, image) as toolbox:
            took = _commands(toolbox, sizes.commands)
    report.figures["bash_singularity_ms_median"] = median(took)
    report.figures["sandbox_start_ms_singularity"] = median(starts)


def lacks_singularity() -> str | None:
    """Why there can be no figures of Singularity here; None when there can."""
    if singularity.command() is None:
        return "no singularity or apptainer on the PATH"
    if not SKELETON.exists():
        return "the script that makes its image is in the source tree, and this is none"
    return None


@contextmanager
def keeper_settings() -> Iterator[Settings]:
    """Settings of a keeper of its own, in a directory that is gone afterwards."""
    folder = tempfile.mkdtemp(prefix="prorl-bench-")
    try:
        yield Settings(run_dir=Path(folder), node="bench")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _starts(keeper: KeeperProcess, image: str | None, count: int) -> list[float]:
    """Milliseconds from asking for a sandbox until its shell has run a first command, one at a time."""
    took = []
    with NeverCancelled() as never:
        for index in range(count):
            began = time.monotonic()
            sandbox = keeper.client.start(_spec(index, image), cancel=never, timeout=START_SECONDS)
            took.append((time.monotonic() - began) * 1000)
            sandbox.stop()
            sandbox.close()
    return took


@contextmanager
def _bash(keeper: KeeperProcess, image: str | None) -> Iterator[Toolbox]:
    """The bash tool on a sandbox to which we attached, as rollout does to what init started."""
    with NeverCancelled() as never:
        started = keeper.client.start(_spec(0, image), cancel=never, timeout=START_SECONDS)
        started.close()
        sandbox = keeper.client.attach(started.handle, cancel=never)
        try:
            yield Toolbox(["bash"], sandbox=sandbox, settings=keeper.settings, cancel=never)
        finally:
            sandbox.stop()
            sandbox.close()


def _commands(toolbox: Toolbox, count: int) -> list[float]:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        answer = toolbox.call("bash", {"command": "true"}).content
        took.append((time.perf_counter() - began) * 1000)
        if not answer.startswith("[exit code 0"):
            raise BenchFailed(f"`true` came to {answer!r}")
    return took


def _spec(index: int, image: str | None) -> SandboxSpec:
    return SandboxSpec(job_id=f"bench-{index}", attempt=1, image=image)


@contextmanager
def _skeleton() -> Iterator[str]:
    """An image of the machine's own programs, where the sandbox user can reach it."""
    folder = tempfile.mkdtemp(prefix="prorl-bench-image-")
    try:
        Path(folder).chmod(0o755)
        made = subprocess.run(
            [SKELETON, f"{folder}/skeleton"], capture_output=True, text=True, timeout=120, check=False
        )
        if made.returncode != 0:
            raise BenchFailed(f"{SKELETON.name}: {made.stderr[-500:]}")
        yield f"{folder}/skeleton"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
