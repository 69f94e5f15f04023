"""The sandbox kind with an image: a Singularity or Apptainer instance, and one `exec` in it on a pseudo-terminal.

Instances are started, listed and stopped through spython, behind functions that check what it answers (a failed start
raises nothing there; the instance it returns merely has no pid). They run in a child of the keeper. `exec` is the
command line. A keeper has an instance registry of its own, and one guard process that kills every instance in it when
the keeper is gone, however it went.

An image whose /usr is an empty folder borrows the host's, read-only (`deploy/images/make_skeleton.sh`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from prorl_celery.errors import SandboxError, SandboxUnavailable
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.launch import (
    Launch,
    User,
    environment,
    init_argv,
    processes_counted_per_namespace,
)
from prorl_celery.sandbox.packages import kernel_python
from prorl_celery.sandbox.share import reachable

WORKDIR = "/workspace"
START_SECONDS = 60.0
"""Longest start of an instance; seen: 0.3 s for a folder."""
INIT_NAMES = ("appinit", "sinit")
"""What an instance's first process is called: Apptainer, older Singularity."""

SHIELD = ("bash", "-c", 'trap "" TTOU TTIN; exec bash "$@"', "prorl-init")
"""Lets bash take the terminal from outside its pid namespace. It would stop itself; process 1 is spared that."""

# Reads until the keeper's end of the pipe closes; then kills every recorded instance, for a while, since one may be
# just starting. A record's pid may by then be another process, so its name is checked.
GUARD = """
read -r _
round=0
while [ $round -lt 30 ]; do
  for record in "$1"/instances/*/*/*/*/*.json; do
    [ -f "$record" ] || continue
    pid=$(sed -n 's/^{"pid":\\([0-9][0-9]*\\),.*/\\1/p' "$record")
    read -r name < "/proc/${pid:-none}/comm" || continue
    case $name in appinit|sinit) kill -9 "$pid" ;; esac
  done
  round=$((round + 1))
  sleep 0.1
done
"""


def command() -> str | None:
    """The program: `singularity` (Apptainer provides it too), else `apptainer`."""
    return shutil.which("singularity") or shutil.which("apptainer")


class Singularity:
    """Instances of one keeper. Raises `SandboxUnavailable` where there is no program."""

    def __init__(self, user: User | None, share: Path, boot: str) -> None:
        program = command()
        if program is None:
            raise SandboxUnavailable("neither `singularity` nor `apptainer` is on the PATH")
        self._program = program
        self._user = user
        self._share = share
        self._registry = share / f"instances-{boot}"
        self._registry.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            os.chown(self._registry, user.uid, user.gid)
        self._guard = self._start_guard()

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    def instance_name(self, sandbox_id: str) -> str:
        """Names an instance for whoever finds it: the keeper's pid and the sandbox."""
        return f"prorl-{os.getpid()}-{sandbox_id}"

    def start_instance(self, spec: SandboxSpec, name: str) -> int:
        """Start an instance and return the pid of its first process. Blocks; for a child process, which it changes.

        Raises: `SandboxError`.
        """
        image = Path(spec.image or "")
        if not image.exists():
            raise SandboxError(f"there is no image {image}")
        if not reachable(image, self._user):
            who = self._user.name if self._user else "this user"
            raise SandboxError(f"{who} cannot read the image {image}")
        # Loaded while the files it is made of can still be read: the sandbox user may not.
        from spython.main import Client

        self._become()
        options = ["--containall", "--no-home", "--writable-tmpfs", "--cleanenv", "--scratch", WORKDIR]
        if spec.network == "none":
            options += ["--net", "--network", "none"]
        if borrows_usr(image):
            options += ["--bind", "/usr:/usr:ro"]
            for folder, seen_at in kernel_python(self._share).folders if spec.kernel else ():
                options += ["--bind", f"{folder}:{seen_at}:ro"]
        return start(Client, str(image), name, options)

    def launch(self, spec: SandboxSpec, name: str, *, nonce: str) -> Launch:
        """The `exec` that holds the sandbox's terminal."""
        processes = spec.processes if processes_counted_per_namespace() else 0
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        inside = environment(spec, path=path, home="/tmp")
        return Launch(
            argv=(
                self._program, "-q", "exec", "--cleanenv", "--pwd", "/", f"instance://{name}",
                "/usr/bin/env", "-i", *(f"{key}={value}" for key, value in inside.items()),
                *SHIELD, *init_argv(spec, nonce=nonce, workdir=WORKDIR, isolated=True, processes=processes)[1:],
            ),
            env=self._environment(),
            user=self._user,
        )  # fmt: skip

    def forget(self, name: str) -> None:
        """Remove the logs of an instance that has ended; nobody else does."""
        for log in self._registry.glob(f"instances/logs/*/*/{name}.*"):
            log.unlink(missing_ok=True)

    def close(self) -> None:
        """End the guard, when the instances have ended."""
        self._guard.kill()
        self._guard.wait(timeout=5.0)
        if self._guard.stdin is not None:
            self._guard.stdin.close()

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self._registry),
            "APPTAINER_CONFIGDIR": str(self._registry),
            "SINGULARITY_CONFIGDIR": str(self._registry),
        }

    def _become(self) -> None:
        if self._user is not None:
            self._user.become()
        os.environ.clear()
        os.environ.update(self._environment())
        os.chdir("/")

    def _start_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "prorl-guard", str(self._registry)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment(),
            cwd="/",
            start_new_session=True,
            user=self._user.uid if self._user else None,
            group=self._user.gid if self._user else None,
            extra_groups=[] if self._user else None,
        )


def borrows_usr(image: Path) -> bool:
    """Whether an image has no /usr of its own."""
    return image.is_dir() and (image / "usr").is_dir() and not any((image / "usr").iterdir())


def start(client: Any, image: str, name: str, options: list[str]) -> int:
    """`instance start` through spython's client. Raises `SandboxError`."""
    try:
        instance: Any = client.instance(image, name=name, options=options, quiet=True)
    except SystemExit as error:  # spython's way of refusing a bind
        raise SandboxError(f"spython refused to start {name}") from error
    pid = getattr(instance, "pid", None)
    if pid is None or not _is_first_process(int(pid)):
        raise SandboxError(f"the instance {name} did not start")
    return int(pid)


def instances() -> list[tuple[str, int]]:
    """Names and pids of this user's instances in this registry, through spython."""
    from spython.main import Client

    found: Any = Client.instances(return_json=True, quiet=True)
    listed = found.get("instances", []) if isinstance(found, dict) else found or []
    return [(str(entry["instance"]), int(entry["pid"])) for entry in listed]


def stop(name: str) -> None:
    """End an instance by its first process, at once; spython's own stop takes 1 to 2 s. Raises `SandboxError`."""
    for found, pid in instances():
        if found == name:
            if not _is_first_process(pid):
                raise SandboxError(f"process {pid} is not the instance {name}")
            os.kill(pid, signal.SIGKILL)


def _is_first_process(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() in INIT_NAMES
    except OSError:
        return False
