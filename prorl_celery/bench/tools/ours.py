"""The bash tool, in each kind of sandbox: a keeper of its own starts them, the benchmark attaches as rollout does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prorl_celery import folders
from prorl_celery.bench.report import BenchFailed
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.launch import User, sandbox_user
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.shell import PtyShell
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess
from prorl_celery.tools.toolbox import Toolbox

START_SECONDS = 60.0
SKELETON_SECONDS = 120.0
SKELETON = Path(__file__).parents[3] / "deploy" / "images" / "make_skeleton.sh"


class BashTool:
    """The bash tool, called as an agent's turn calls it."""

    def __init__(self, toolbox: Toolbox, shell: PtyShell) -> None:
        self._toolbox = toolbox
        self._shell = shell

    @property
    def copied_bytes(self) -> int:
        return self._shell.bytes_moved

    def run(self, command: str, *, timeout: float) -> str:
        """As `Way.run`."""
        said, _, ended = self._toolbox.call("bash", {"command": command, "timeout": timeout}).content.rpartition("\n")
        if not ended.startswith("[exit code 0;"):
            raise BenchFailed(f"the bash tool: `{command}` came to {said[-200:]!r} {ended}")
        return said


@contextmanager
def bash(keeper: KeeperProcess, spec: SandboxSpec) -> Iterator[BashTool]:
    """The tool on a sandbox of its own."""
    with attached(keeper, spec) as sandbox, NeverCancelled() as never:
        yield BashTool(Toolbox(["bash"], sandbox=sandbox, settings=keeper.settings, cancel=never), sandbox.shell)


@contextmanager
def attached(keeper: KeeperProcess, spec: SandboxSpec) -> Iterator[LiveSandbox]:
    """A sandbox that was started (and let go of, as init does) and attached to; ended with the block."""
    with NeverCancelled() as never:
        started = keeper.client.start(spec, cancel=never, timeout=START_SECONDS)
        try:
            started.close()
            sandbox = keeper.client.attach(started.handle, cancel=never)
            try:
                yield sandbox
            finally:
                sandbox.close()
        finally:
            started.stop()


@dataclass(frozen=True, slots=True)
class Place:
    """A keeper, what to ask it for by the kind's short name (bwrap, local, singularity; kernel is bwrap with one), and
    why not for others.

    `user`: whom the sandboxes run as.
    """

    keeper: KeeperProcess
    user: User | None
    specs: dict[str, SandboxSpec]
    lacks: dict[str, str]


@contextmanager
def place() -> Iterator[Place]:
    """A keeper of our own that lets us have every kind; gone afterwards, with its folder and the image."""
    with folders.temporary("bench") as folder:
        # No spares: every start that is measured is one.
        settings = Settings(run_dir=folder.path, node="bench", allow_unsafe_local=True, spare_sandboxes=0)
        with ExitStack() as stack:
            found = Place(stack.enter_context(KeeperProcess(settings)), sandbox_user(settings), {}, {})
            for name, kind in (("bwrap", "bubblewrap"), ("local", "local")):
                found.specs[name] = SandboxSpec(job_id="bench", attempt=1, kind=kind)
            found.specs["kernel"] = replace(found.specs["bwrap"], kernel=True)
            lack = lacks_singularity()
            if lack is None:
                try:
                    image = stack.enter_context(skeleton())
                    found.specs["singularity"] = SandboxSpec(job_id="bench", attempt=1, kind="singularity", image=image)
                except (BenchFailed, OSError) as error:
                    lack = str(error)
            if lack is not None:
                found.lacks["singularity"] = lack
            yield found


def lacks_singularity() -> str | None:
    """Why there can be no figures of Singularity here; None when there can."""
    if singularity.command() is None:
        return "no singularity or apptainer on the PATH"
    if not SKELETON.exists():
        return "the script that makes its image is in the source tree, and this is none"
    return None


@contextmanager
def skeleton() -> Iterator[str]:
    """An image of the machine's own programs, where the sandbox user can reach it. Raises `BenchFailed`."""
    with folders.temporary("bench", mode=0o755) as folder:
        image = folder.path / "skeleton"
        try:
            made = subprocess.run(
                [SKELETON, image], capture_output=True, text=True, timeout=SKELETON_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BenchFailed(f"{SKELETON.name} took over {SKELETON_SECONDS:g} s") from error
        if made.returncode != 0:
            raise BenchFailed(f"{SKELETON.name}: {made.stderr[-500:]}")
        yield str(image)
