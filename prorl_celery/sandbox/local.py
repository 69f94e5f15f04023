"""The sandbox kind that isolates nothing: a shell on this machine, for machines that can do no better.

Refused unless PRORL_ALLOW_UNSAFE_LOCAL=1. Commands read and write whatever the user can; a process that makes a
session of its own outlives the sandbox, until the janitor finds it by the variable that marks it when the keeper has
gone. It exists for tests and for looking at a problem by hand.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from prorl_celery.sandbox import owner
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.launch import Launch, User, environment, init_argv


def local_launch(spec: SandboxSpec, *, nonce: str, user: User | None, share: Path) -> Launch:
    """What to run: bash in a fresh folder in the keeper's `share`, which `discard` removes. Raises `OSError`."""
    work = Path(tempfile.mkdtemp(prefix="local-", dir=share))
    if user is not None:
        shutil.chown(work, user.uid, user.gid)
    # No limit of processes: it would count everything the user runs on this machine.
    init = init_argv(spec, nonce=nonce, workdir=str(work), isolated=False, processes=0)
    return Launch(
        argv=init,
        env={
            **environment(spec, path="/usr/local/bin:/usr/bin:/bin", home=str(work)),
            owner.VARIABLE: f"{owner.label()}:{nonce}",
        },
        user=user,
        cwd=str(work),
        isolated=False,
        workdir=str(work),
    )


def discard(launch: Launch) -> None:
    """Remove the folder of a local sandbox."""
    shutil.rmtree(launch.workdir, ignore_errors=True)
