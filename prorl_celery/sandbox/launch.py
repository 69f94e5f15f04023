"""What the keeper runs to start a sandbox, and which kind it is.

A kind turns a `SandboxSpec` into a `Launch`: one program on a pseudo-terminal that ends up in `init.sh` inside. Kinds
that need more before that (a Singularity instance) do it in a child process, so that the keeper never waits.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from prorl_celery.errors import SandboxRefused, SandboxUnavailable
from prorl_celery.sandbox import owner
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.limits import data_kib
from prorl_celery.sandbox.networks import check_network
from prorl_celery.settings import Settings

CONTROL = "{control}"
"""Stands in an argument for the number of the control channel's descriptor."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KINDS = ("bubblewrap", "singularity", "local")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Whom sandboxes run as. `User | None`: None is whoever runs the keeper, where that is not root."""

    name: str
    uid: int
    gid: int

    def become(self) -> None:
        """Drop to this user; in a child before exec."""
        os.setgroups([])
        os.setgid(self.gid)
        os.setuid(self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One program to start on a pseudo-terminal."""

    argv: tuple[str, ...]
    env: dict[str, str]
    user: User | None
    cwd: str = "/"
    isolated: bool = True
    """The program's end takes everything in the sandbox with it (a pid namespace)."""
    workdir: str = "/workspace"
    passed: tuple[int, ...] = ()
    """Descriptors that the program inherits under their numbers."""


def sandbox_user(settings: Settings) -> User | None:
    """The user to drop to when the keeper runs as root.

    Raises: `SandboxUnavailable` when that user does not exist or is root.
    """
    if os.geteuid() != 0:
        return None
    name = settings.sandbox_user
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise SandboxUnavailable(
            f"sandboxes must not run as root, and the user {name!r} does not exist: name one in PRORL_SANDBOX_USER"
        ) from error
    if entry.pw_uid == 0:
        raise SandboxUnavailable(f"sandboxes must not run as root: PRORL_SANDBOX_USER={name} is root")
    return User(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


def choose_kind(spec: SandboxSpec, settings: Settings, *, has_singularity: Callable[[], bool]) -> str:
    """The kind for a spec: its own, else the node's setting, else by whether it names an image.

    Raises: `SandboxUnavailable`, `SandboxRefused` for a spec that no kind can serve.
    """
    kind = spec.kind if spec.kind != "auto" else settings.sandbox
    if kind == "auto":
        kind = "bubblewrap" if spec.image is None else "singularity"
    if kind not in KINDS:
        raise SandboxRefused(f"{kind!r} is no kind of sandbox; there are auto, {', '.join(KINDS)}")
    if spec.image is not None and kind != "singularity":
        raise SandboxUnavailable(f"the sandbox kind {kind} has no images; use singularity, or no image")
    if kind == "singularity":
        if spec.image is None:
            raise SandboxRefused("a singularity sandbox needs an image")
        if not has_singularity():
            raise SandboxUnavailable(
                "an image needs Apptainer or Singularity, and neither `singularity` nor `apptainer` is on the PATH; "
                "on Debian 12 deploy/images/install_apptainer.sh installs it, elsewhere the system's package"
            )
    if kind == "local" and not settings.allow_unsafe_local:
        raise SandboxUnavailable("the sandbox kind local isolates nothing; PRORL_ALLOW_UNSAFE_LOCAL=1 allows it")
    return kind


def check_spec(spec: SandboxSpec, settings: Settings, kind: str) -> None:
    """Raises `SandboxRefused` when a spec asks for what its kind of sandbox cannot be, or the node does not allow."""
    check_network(spec, settings, kind)
    for name, value in spec.env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise SandboxRefused(f"{name!r} cannot be an environment variable")
    if spec.fakeroot and kind != "singularity":
        raise SandboxRefused(f"a {kind} sandbox cannot look like root: fakeroot needs an image")
    if spec.fakeroot and not settings.sandbox_fakeroot:
        raise SandboxRefused("looking like root is not allowed on this node: PRORL_SANDBOX_FAKEROOT=1 allows it")
    if spec.binds and kind == "local":
        raise SandboxRefused("a local sandbox has no binds: it sees all of the machine")
    if spec.processes < 8 or spec.memory_bytes < 1 << 20 or spec.disk_bytes < 4096 or spec.lifetime_seconds <= 0:
        raise SandboxRefused("a sandbox needs 8 processes, 1 MiB of memory, 4 KiB of disk and time to live")


def environment(spec: SandboxSpec, *, path: str, home: str) -> dict[str, str]:
    """The whole environment of a sandbox: nothing of the host's."""
    return {
        "PATH": path,
        "HOME": home,
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "USER": "agent",
        "SHELL": "/bin/bash",
        # Nobody answers a pager or a password prompt.
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "DEBIAN_FRONTEND": "noninteractive",
        "PYTHONUNBUFFERED": "1",
        # A library that starts a thread for each of the machine's cores is slower for it where many sandboxes run.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **spec.env,
    }


def init_argv(spec: SandboxSpec, *, nonce: str, workdir: str, isolated: bool, processes: int) -> tuple[str, ...]:
    """bash on `init.sh`, as text: the sandbox need not see any file of ours."""
    return (
        "bash", "--noprofile", "--norc", "-m", "-c", _script("init.sh"), owner.label(),
        nonce, CONTROL, workdir, str(processes), str(data_kib(spec)),
        "all" if isolated else "terminal", _script("shellrc.sh"),
    )  # fmt: skip


@cache
def _script(name: str) -> str:
    """A script without its comments: it is an argument of every sandbox."""
    text = files("prorl_celery.sandbox").joinpath(name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#") and line.strip())


@cache
def processes_counted_per_namespace() -> bool:
    """Whether RLIMIT_NPROC counts a user namespace's own processes (Linux 5.14) or all of the user's on the host."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)
