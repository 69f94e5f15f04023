"""How the program is called: to start an instance, and to enter it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.binds import Bind
from prorl_celery.sandbox.launch import environment, init_argv, processes_counted_per_namespace
from prorl_celery.sandbox.singularity.program import Program
from prorl_celery.sandbox.singularity.seal import HOME, SCRATCH, WORKDIR

ENTRIES = 20
"""How often an instance is entered in all. Who kills each holder of its terminal at once is at it for ever."""
DROPPED = (
    "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO",
    "CAP_MKNOD", "CAP_SYS_BOOT", "CAP_SYS_TIME",
)  # fmt: skip
"""What root inside is without: the first two would undo the limits of its disk and its processes."""


def start_options(
    program: Program, spec: SandboxSpec, *, binds: tuple[Bind, ...] = (), user_namespaces: bool = True
) -> list[str]:
    """Options of `instance start`. `user_namespaces`: ask for them, also of a set-uid program."""
    options = ["--containall", "--no-home", "--writable-tmpfs", "--cleanenv", "--no-mount", "sys,bind-paths"]
    options += ["--hostname", "sandbox"]
    if user_namespaces:
        options += ["--userns"]
    if spec.fakeroot:
        options += ["--fakeroot"]
        # Without a line in /etc/subuid Apptainer would put a `fakeroot` around each command: an agent that kills all
        # it can would end it, and itself.
        options += ["--ignore-fakeroot-command"] if program.product == "apptainer" else []
    for place in SCRATCH:
        options += ["--scratch", place]
    # A bridge is added to an empty network from outside.
    if spec.network != "host":
        options += ["--net", "--network", "none"]
    for bind in binds:
        options += ["--bind", f"{bind.source}:{bind.target}:{'rw' if bind.writable else 'ro'}"]
    return options


def enter_argv(program: Program, spec: SandboxSpec, name: str, pid: int, *, nonce: str) -> tuple[str, ...]:
    """What holds a sandbox's terminal: `exec` in its instance, whose first process is `pid`."""
    processes = spec.processes if processes_counted_per_namespace() else 0
    drop = ("--drop-caps", ",".join(DROPPED)) if spec.fakeroot else ()
    # The image's own PATH, unless the specification has one.
    variables = environment(spec, path="", home=HOME)
    inside = {key: value for key, value in variables.items() if key != "PATH" or key in spec.env}
    return (
        "/bin/sh", "-c", script("hold.sh"), "prorl-hold", str(pid), str(ENTRIES),
        program.path, "-q", "exec", "--cleanenv", "--pwd", "/", *drop, f"instance://{name}",
        "/usr/bin/env", *(f"{key}={value}" for key, value in inside.items()),
        "bash", "-c", script("enter.sh"), "prorl-init",
        *init_argv(spec, nonce=nonce, workdir=WORKDIR, isolated=True, processes=processes)[1:],
    )  # fmt: skip


def borrowed_usr() -> Bind:
    """The host's /usr, for an image without one."""
    return Bind("/usr", "/usr", writable=False)


def folder(source: Path, target: str) -> Bind:
    """A folder of ours."""
    return Bind(str(source), target, writable=False)


@cache
def script(name: str) -> str:
    """A script without its comments: it is an argument."""
    text = files("prorl_celery.sandbox.singularity").joinpath(name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#") and line.strip())
