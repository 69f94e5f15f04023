"""Instances through spython: started, listed, stopped; what it answers is checked and becomes a typed error.

What has to be checked (spython 0.3.14): a start that failed raises nothing and gives an instance without a pid; a
missing bind calls `sys.exit`; the listing is a list, a dictionary or nothing; `stop` returns what the program returned.
Everything blocks, up to a time-out that the caller has. It is for child processes of the keeper, which run as the
sandbox user: `become` makes the calling process one.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.singularity.registry import Record, Registry, is_first_process

PR_SET_PDEATHSIG = 1


def load() -> Any:
    """spython's client. Loaded while the files it is made of can still be read: the sandbox user may not."""
    from spython.main import Client

    return Client


class Instances:
    """Those of one registry. Raises of every method: `SandboxError`."""

    def __init__(self, registry: Registry, user: User | None) -> None:
        self._registry = registry
        self._user = user
        self._client = load()

    def become(self) -> None:
        """Make this process the sandbox user's, with nothing of the environment it had. For good. It ends with its
        parent.
        """
        parent = os.getppid()
        if self._user is not None:
            self._user.become()
        # After the change of user, which would undo it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        os.environ.clear()
        os.environ.update(self._registry.spython_environment())
        os.chdir("/")

    def start(self, image: str, name: str, options: list[str]) -> int:
        """Start an instance; the pid of its first process."""
        try:
            instance = self._client.instance(image, name=name, options=options, quiet=True)
        except SystemExit as error:
            raise SandboxError(f"spython refused to start {name}") from error
        pid = getattr(instance, "pid", None)
        if not isinstance(pid, int) or not is_first_process(pid):
            raise SandboxError(f"the instance {name} did not start")
        return pid

    def listed(self) -> list[Record]:
        """All that the program tells of."""
        try:
            found = self._client.instances(return_json=True, quiet=True)
            entries = found.get("instances", []) if isinstance(found, dict) else found or []
            return [Record(str(entry["instance"]), int(entry["pid"])) for entry in entries]
        except (SystemExit, LookupError, TypeError, ValueError) as error:
            raise SandboxError(f"the instances could not be listed: {error}") from error

    def stop(self, name: str, *, patience_seconds: int = 0) -> None:
        """End an instance, which may be gone already: at once, or by the program, which lets it end for that long.

        The program's own way takes a second or two.
        """
        for record in self.listed():
            if record.name != name:
                continue
            if not record.lives:
                raise SandboxError(f"process {record.pid} is not the instance {name}")
            if patience_seconds:
                self._ask_to_stop(name, patience_seconds)
            else:
                os.kill(record.pid, signal.SIGKILL)

    def _ask_to_stop(self, name: str, patience_seconds: int) -> None:
        try:
            code = self._client.instance("", name=name, start=False, quiet=True).stop(timeout=patience_seconds)
        except SystemExit as error:
            raise SandboxError(f"spython refused to stop {name}") from error
        if code != 0:
            raise SandboxError(f"the instance {name} could not be stopped: exit code {code}")
