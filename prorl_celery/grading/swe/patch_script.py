"""Runs the shell functions of `git.sh`, `patch.sh` and `apply.sh` in a sandbox, beside a repository."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from shlex import quote

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import CommandResult, Sandbox

KEPT = "/workspace/.base"
"""Our folder beside the repository. Every kind of sandbox has /workspace, writable and of bounded size."""
PATH = ":".join(
    (
        "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
        "/opt/miniconda3/bin", "/opt/conda/bin", "/opt/miniconda3/envs/testbed/bin",
    )
)  # fmt: skip
"""Where git and the like are: the system's before those that an image's environments bring."""
GONE, LOST, TOO_MUCH, FULL, DOES_NOT_APPLY = 3, 4, 5, 6, 7
"""Exit codes of the functions that mean something of their own."""


def run_beside(
    sandbox: Sandbox, part: str, workdir: str, command: str, *arguments: str, timeout: float
) -> CommandResult:
    """Call a function of `part` (`patch`, `apply`) for the repository at `workdir`, with nothing of the shell's own
    environment. The shell's folder and variables stay.

    Raises: `SandboxError`, also when it took longer than `timeout` seconds; what the cancel signal raises.
    """
    words = ("bash", "--noprofile", "--norc", "-c", _script(part), "prorl", workdir, KEPT, command, *arguments)
    line = f"\\cd / && /usr/bin/env -i PATH={PATH} " + " ".join(map(quote, words))
    ran = sandbox.shell.run(f"({line})", timeout=timeout)
    if ran.timed_out or ran.exit_code is None:
        raise SandboxError(f"`{command}` beside the repository {workdir} did not end in {timeout:.0f} s")
    return ran


def said(ran: CommandResult) -> str:
    """The end of what it printed, for a message."""
    return ran.output.strip()[-1000:]


@cache
def _script(part: str) -> str:
    """Without comments: it is an argument."""
    here = files("prorl_celery.grading.swe")
    text = "\n".join(here.joinpath(name).read_text(encoding="utf-8") for name in ("git.sh", f"{part}.sh"))
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join((*lines, '"$command" "$@"'))
