"""Sandboxes to escape from: both kinds, of a keeper that root runs and of one that an ordinary user runs.

A jail is a keeper and the sandboxes it starts. Its image (where the kind has one) belongs to the sandbox user and holds
a setuid copy of bash that belongs to root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from other_user import readable_python, user_named

from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.singularity import command
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

COMBINATIONS = ("bubblewrap-root", "bubblewrap-user", "singularity-root", "singularity-user")
SKELETON = Path(__file__).parents[2] / "deploy" / "images" / "make_skeleton.sh"
SETUID = "/opt/setuid-bash"
START_SECONDS = 60.0


@dataclass
class Jail:
    """`folder`: the keeper's run directory, as private as a worker's is. `secret`: a file there."""

    kind: str
    keeper: KeeperProcess
    image: str | None
    folder: Path
    secret: Path
    never: NeverCancelled
    another: Callable[[], AbstractContextManager[Jail]]
    """One with a keeper of its own, which a test may kill."""
    _shared: list[LiveSandbox] = field(default_factory=list)

    def start(self, **changes: Any) -> LiveSandbox:
        """A sandbox of its own for a test, which stops it."""
        spec = SandboxSpec(**{"job_id": "job", "attempt": 1, "kind": self.kind, "image": self.image, **changes})
        return self.keeper.client.start(spec, cancel=self.never, timeout=START_SECONDS)

    @property
    def sandbox(self) -> LiveSandbox:
        """One for all tests that leave it as it is."""
        return self._one(0)

    @property
    def neighbour(self) -> LiveSandbox:
        """Another such, of another job."""
        return self._one(1)

    def output(self, command: str, *, timeout: float = 30.0) -> str:
        """What a command prints in the shared sandbox."""
        return self.sandbox.shell.run(command, timeout=timeout).output

    def python(self, code: str, *, timeout: float = 60.0, sandbox: LiveSandbox | None = None) -> str:
        """What a program prints, run by the sandbox's own Python."""
        sandbox = sandbox or self.sandbox
        sandbox.files.write("/workspace/attack.py", code.encode())
        return sandbox.shell.run("python3 /workspace/attack.py", timeout=timeout).output

    def close(self) -> None:
        """Let go of the shared ones; the keeper's end is theirs."""
        for sandbox in self._shared:
            sandbox.close()

    def _one(self, index: int) -> LiveSandbox:
        while len(self._shared) <= index:
            self._shared.append(self.start(job_id=f"shared-{len(self._shared)}"))
        return self._shared[index]


@dataclass(frozen=True)
class Parts:
    """What all jails share. `user`: the ordinary user, and whom root's sandboxes run as."""

    folder: Path
    user: User
    image: str
    python: tuple[str, dict[str, str]]


def make_parts(folder: Path) -> Parts:
    """Make them in a folder that everyone can reach."""
    user = user_named("nobody")
    image = folder / "image"
    if command() is not None:
        subprocess.run([SKELETON, image], check=True, timeout=120)
        (image / "opt").mkdir(exist_ok=True)
        shutil.copy("/bin/bash", f"{image}{SETUID}")
        Path(f"{image}{SETUID}").chmod(0o4755)
    python: tuple[str, dict[str, str]] = ("", {})
    if os.geteuid() == 0:
        for path in (image, *image.rglob("*")):
            if path.name != Path(SETUID).name:
                os.chown(path, user.uid, user.gid, follow_symlinks=False)
        code = folder / "code"
        code.mkdir()
        python = readable_python(code, user)
    return Parts(folder, user, str(image), python)


@contextmanager
def jail(combination: str, parts: Parts) -> Iterator[Jail]:
    """A keeper for a combination. Skips where this machine or this user cannot have it."""
    kind, _, who = combination.partition("-")
    if kind == "singularity" and command() is None:
        pytest.skip("no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it)")
    if who == "root" and os.geteuid() != 0:
        pytest.skip("this run is an ordinary user's")
    options: dict[str, Any] = {}
    environment = {"HOST_SECRET": "do-not-tell"}
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=combination, dir=parts.folder))
        # A killed keeper's guard may be removing some of it at the same time.
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        secret = folder / "secret"
        secret.write_text("of the host")
        secret.chmod(0o600)
        if who == "user" and os.geteuid() == 0:
            program, more = parts.python
            options = {"user": parts.user.name, "program": program}
            environment |= {**more, "HOME": str(folder)}
            for path in (folder, secret):
                os.chown(path, parts.user.uid, parts.user.gid)
        settings = Settings(run_dir=folder, node="n1", spare_sandboxes=0)
        keeper = stack.enter_context(KeeperProcess(settings, extra_env=environment, **options))
        never = stack.enter_context(NeverCancelled())
        image = parts.image if kind == "singularity" else None
        made = Jail(kind, keeper, image, folder, secret, never, lambda: jail(combination, parts))
        stack.callback(made.close)
        yield made


def marked(mark: str) -> list[int]:
    """Processes of this machine that have a mark in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
