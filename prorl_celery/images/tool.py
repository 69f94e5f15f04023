"""Apptainer's or Singularity's `build`, and a first start of what it built: in children that leave nothing behind.

As root they run as the sandbox user, in user namespaces as any user's do: so what is unpacked is that user's, which is
what lets an agent change it in its own layer; a setuid file of an image is no root's; and root and others get the same.
Each runs inside a pid namespace of bubblewrap's where the machine lets it: `%post` starts daemons (fakeroot's for one),
and they end with it, or with us if we are killed. They see no variable of ours but those named here.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_celery.errors import BadImage, DiskFull, ImageError, ImageNotFound, SandboxUnavailable, Stopping
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.bubblewrap import find_binary
from prorl_celery.sandbox.image_check import borrows_usr, check_image
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.waiting import Waiter

BUILD_SECONDS = 3 * 3600.0
"""Longest build or pull of one image."""
START_SECONDS = 120.0
END_SECONDS = 10.0
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
TAIL_BYTES = 64 << 10
LONGEST_REASON = 500
PASSED_ON = (
    "LANG", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
CREDENTIALS = tuple(
    f"{prefix}DOCKER_{part}" for prefix in ("APPTAINER_", "SINGULARITY_", "") for part in ("USERNAME", "PASSWORD")
)
"""The tool's own variables for a registry's account; passed on where a registry is asked."""

NAMESPACE = ("--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc", "--die-with-parent")

NO_ROOM = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
NOT_THERE = re.compile(
    r"status code 40[134]|MANIFEST_UNKNOWN|manifest unknown|NAME_UNKNOWN|UNAUTHORIZED|DENIED|could not parse reference"
)
NO_FUSE = " (an image file needs /dev/fuse open to all, by `chmod 666 /dev/fuse`; a folder needs no FUSE)"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Stop:
    """Says to all that wait on it that the work is given up. A cancel signal."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._set = False

    def set(self) -> None:
        """From any thread, or a signal handler."""
        self._set = True
        os.eventfd_write(self._descriptor, 1)

    def fileno(self) -> int:
        return self._descriptor

    def raise_if_set(self) -> None:
        """Raises: `Stopping`."""
        if self._set:
            raise Stopping("interrupted")

    @property
    def is_set(self) -> bool:
        return self._set

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def wait(self, seconds: float) -> None:
        """Wait that long, unless it is set. Raises: `Stopping`."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(seconds * 1000.0)
        self.raise_if_set()


@dataclass(frozen=True, slots=True)
class Tool:
    """The program, whom it runs as, and what it is run in."""

    program: str
    version: str
    """What it says of itself: `apptainer version 1.4.5`."""
    user: User | None
    inside: tuple[str, ...] = ()

    @classmethod
    def find(cls, user: User | None, share: Path) -> Tool:
        """The machine's; `share` is a folder that `user` can reach. Raises: `ImageError` where there is none."""
        program = singularity.command()
        if program is None:
            raise ImageError(
                "images are made by Apptainer or Singularity, and neither `singularity` nor `apptainer` is on the "
                "PATH; on Debian 12 deploy/images/install_apptainer.sh installs it, elsewhere the system's package"
            )
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        version = said.stdout.strip() or "unknown"
        try:
            inside = (str(find_binary(user, share)), *NAMESPACE, "--")
            subprocess.run(
                [*inside, "true"], **_identity(user), env={"PATH": SYSTEM_PATH}, capture_output=True,
                timeout=START_SECONDS, check=True,
            )  # fmt: skip
        except (SandboxUnavailable, OSError, subprocess.SubprocessError):
            return cls(program, version, user)
        return cls(program, version, user, inside)

    def build(
        self, arguments: Sequence[str], *, work: Path, cache: Path, log: Path, stop: Stop, registry: bool = False
    ) -> None:
        """`build ARGUMENTS`, with its temporary files in `work`, what it says in `log`. `registry`: one is asked.

        Raises: `ImageNotFound`, `DiskFull`, `ImageError`, `Stopping`.
        """
        environ = self._environment(work, cache, credentials=registry)
        with log.open("ab") as said:
            began = said.tell()
            code = self._run(["build", *arguments], work, environ, said.fileno(), BUILD_SECONDS, stop)
        if code == 0:
            return
        text = _tail(log, began)
        reason = _reason(text) if code is not None else f"it took over {BUILD_SECONDS / 3600:g} hours"
        if NO_ROOM.search(text):
            raise DiskFull(reason)
        if registry and NOT_THERE.search(reason):
            raise ImageNotFound(reason)
        raise ImageError(reason)

    def start(self, image: Path, *, work: Path, log: Path, stop: Stop) -> None:
        """See that an image starts: its header, and then a shell in it that ends at once.

        Raises: `BadImage`, `Stopping`.
        """
        check_image(image, self.user)
        argv = ["-q", "exec", "--containall", "--no-home", "--cleanenv", "--net", "--network", "none"]
        argv += ["--bind", "/usr:/usr:ro"] if borrows_usr(image) else []
        argv += ["--pwd", "/", str(image), "/usr/bin/env", "bash", "-c", "exit 0"]
        with log.open("ab") as said:
            began = said.tell()
            code = self._run(argv, work, self._environment(work, work), said.fileno(), START_SECONDS, stop)
        if code != 0:
            reason = _reason(_tail(log, began)) if code is not None else f"no shell after {START_SECONDS:.0f} s"
            cure = NO_FUSE if "/dev/fuse" in reason else ""
            raise BadImage(f"nothing starts in the image {image.name}: {reason}{cure}")

    def _environment(self, work: Path, cache: Path, *, credentials: bool = False) -> dict[str, str]:
        names = PASSED_ON + (CREDENTIALS if credentials else ())
        ours = {"CACHEDIR": cache, "TMPDIR": work, "CONFIGDIR": work, "IGNORE_SUBUID": "1"}
        return {
            **{name: os.environ[name] for name in names if name in os.environ},
            "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}".lstrip(":"),  # debootstrap is an administrator's
            "HOME": str(work),
            "TMPDIR": str(work),
            **{f"{tool}_{name}": str(value) for tool in ("APPTAINER", "SINGULARITY") for name, value in ours.items()},
        }

    def _run(
        self, arguments: Sequence[str], work: Path, environ: Mapping[str, str], said: int, seconds: float, stop: Stop
    ) -> int | None:
        """Its exit code; None when it took too long. Raises: `Stopping`, `ImageError`."""
        stop.raise_if_set()
        try:
            process = subprocess.Popen(
                [*self.inside, self.program, *arguments],
                env=dict(environ),
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                process_group=0,
                **_identity(self.user),
            )
        except OSError as error:
            raise ImageError(f"{self.program} could not be run: {error.strerror or error}") from error
        with _ended(process) as descriptor:
            in_time = Waiter(descriptor, stop).readable(time.monotonic() + seconds)
        return process.returncode if in_time else None


def _identity(user: User | None) -> dict[str, Any]:
    """For Popen: become `user`."""
    return {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[int]:
    """A descriptor that is readable once the process has ended; at the end of the block it and its group have.

    It is reaped only then: until it is, its group's number is nobody else's.
    """
    descriptor = os.pidfd_open(process.pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_SECONDS)


def _tail(log: Path, began: int) -> str:
    """What was said from `began` on, the last of it."""
    with log.open("rb") as file:
        file.seek(max(began, log.stat().st_size - TAIL_BYTES))
        return COLOUR.sub("", file.read().decode("utf-8", "replace"))


def _reason(text: str) -> str:
    """The line that most looks like the reason, cut short; of a script that failed, its own last line as well."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("FATAL", "ERROR", "E:"))]
    reason = (telling or lines or ["it said nothing"])[-1].removeprefix("FATAL:").strip()
    if re.search(r"exit status \d+$", reason):
        own = [line for line in lines if not line.startswith(("FATAL", "ERROR", "INFO", "WARNING", "+"))]
        reason = ": ".join([reason, *own[-1:]])
    return reason[:LONGEST_REASON]
