"""A sandbox that another process worked in until it was lost: before anything else is done there, what that one left
half-done is waited for. Where that cannot be, the rollout cannot go on: `CannotGoOn`, and it starts over. That is the
job's signal then, so that it counts whatever the handler makes of the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prorl_celery.errors import CannotGoOn, KeeperLost, SandboxError
from prorl_celery.sandbox.base import (
    CellResult,
    CommandResult,
    Files,
    Kernel,
    Recovered,
    RecoveredCell,
    Sandbox,
    SandboxHandle,
    Shell,
)
from tasks.signals import JobSignal


@contextmanager
def taking_over(signal: JobSignal, begun: bool = True) -> Iterator[None]:
    """Raise `CannotGoOn` for a sandbox that is of no use; what is no fault of the sandbox stays as it is.

    Not `begun`: nobody is known to have been at work in it, so that its faults are those of any sandbox.
    """
    try:
        yield
    except KeeperLost:
        raise
    except SandboxError as error:
        if not begun and not isinstance(error, CannotGoOn):
            raise
        signal.set(CannotGoOn(f"the sandbox could not be taken over: {error}"))
        signal.raise_if_set()


class TakenOverShell:
    """A shell that was another's."""

    def __init__(self, shell: Shell, signal: JobSignal) -> None:
        self._shell = shell
        self._signal = signal
        self._ours = False

    def run(self, command: str, *, timeout: float) -> CommandResult:
        """As `Shell.run`; the first one waits for what is under way, within its own time-out."""
        if not self._ours:
            self.recover(timeout=timeout)
        return self._shell.run(command, timeout=timeout)

    def recover(self, *, timeout: float) -> Recovered:
        """As `Shell.recover`. Raises `CannotGoOn` in place of `SandboxError`."""
        with taking_over(self._signal):
            found = self._shell.recover(timeout=timeout)
        self._ours = True
        return found


class TakenOverKernel:
    """A kernel that was another's."""

    def __init__(self, kernel: Kernel, signal: JobSignal) -> None:
        self._kernel = kernel
        self._signal = signal
        self._ours = False

    def run(self, code: str, *, timeout: float) -> CellResult:
        """As `Kernel.run`; the first one waits for what is under way, within its own time-out."""
        if not self._ours:
            self.recover(timeout=timeout)
        return self._kernel.run(code, timeout=timeout)

    def recover(self, *, timeout: float) -> RecoveredCell:
        """As `Kernel.recover`. Raises `CannotGoOn` in place of `SandboxError`."""
        with taking_over(self._signal):
            found = self._kernel.recover(timeout=timeout)
        self._ours = True
        return found

    def restart(self) -> None:
        self._kernel.restart()
        self._ours = True


class TakenOverFiles:
    """The files of a sandbox that was another's."""

    def __init__(self, files: Files, signal: JobSignal) -> None:
        self._files = files
        self._signal = signal
        self._ours = False

    def read(self, path: str, *, limit_bytes: int = 1 << 20) -> bytes:
        return self._mended().read(path, limit_bytes=limit_bytes)

    def write(self, path: str, data: bytes) -> None:
        self._mended().write(path, data)

    def listing(self, path: str) -> list[str] | None:
        return self._mended().listing(path)

    def recover(self) -> bool:
        """As `Files.recover`. Raises `CannotGoOn` in place of `SandboxError`."""
        with taking_over(self._signal):
            written = self._files.recover()
        self._ours = True
        return written

    def _mended(self) -> Files:
        if not self._ours:
            self.recover()
        return self._files


class TakenOverSandbox:
    """A `Sandbox` with such a shell, such files and such a kernel."""

    def __init__(self, sandbox: Sandbox, signal: JobSignal) -> None:
        self._sandbox = sandbox
        self._signal = signal
        self._shell = TakenOverShell(sandbox.shell, signal)
        self._files = TakenOverFiles(sandbox.files, signal)
        self._kernel: TakenOverKernel | None = None

    @property
    def handle(self) -> SandboxHandle:
        return self._sandbox.handle

    @property
    def shell(self) -> Shell:
        return self._shell

    @property
    def files(self) -> Files:
        return self._files

    @property
    def kernel(self) -> Kernel:
        if self._kernel is None:
            self._kernel = TakenOverKernel(self._sandbox.kernel, self._signal)
        return self._kernel

    @property
    def marked(self) -> str:
        return self._sandbox.marked

    def mark(self, name: str) -> None:
        self._sandbox.mark(name)

    def close(self) -> None:
        self._sandbox.close()

    def stop(self) -> None:
        self._sandbox.stop()
