"""A real keeper for tests: `with KeeperProcess(settings) as keeper: keeper.client.start(...)`."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from types import TracebackType

from prorl_celery.errors import KeeperLost, SandboxError
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings

READY_SECONDS = 30.0


class KeeperProcess:
    """Starts a keeper in a process of its own and waits until it answers; ends it on leaving.

    With `user`, root runs it as that user, by a Python `program` that the user can read.
    Raises: `KeeperLost` with what it wrote, when it does not come up.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        boot: str = "boot-1",
        extra_env: dict[str, str] | None = None,
        user: str | None = None,
        program: str = sys.executable,
    ) -> None:
        self.settings = settings
        self.boot = boot
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PRORL_")}
        self.process = subprocess.Popen(
            [program, "-P", "-m", "prorl_celery.node.keeper", "--boot", boot],
            stdin=subprocess.PIPE,
            cwd="/" if user else None,
            user=user,
            group=pwd.getpwnam(user).pw_gid if user else None,
            extra_groups=[] if user else None,
            process_group=0,  # a Ctrl-C is ours to handle: it must not end the sandboxes under a job
            env={**environment, **settings.to_env(), **(extra_env or {})},
        )
        self.client = KeeperClient(settings)
        self._await_ready()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                raise KeeperLost("the keeper did not come up; it has written why")
            try:
                self.process.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                continue

    def _answers(self) -> bool:
        try:
            return bool(self.client.status()["boot"] == self.boot)
        except SandboxError:
            return False

    def stop(self) -> None:
        """Let go of it, as a supervisor that ends does, and wait until it has gone."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=15.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=5.0)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(timeout=5.0)

    def __enter__(self) -> KeeperProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
