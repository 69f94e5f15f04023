"""Tells a command that failed from a command that was ended with everything else on the machine.

Slurm's `scancel` and systemd's `stop` signal every process of a job at once, those in sandboxes too. A hidden test that
ends by such a signal has not failed, and must not be scored as if it had. So when a command is ended by a signal, its
stage waits a moment for the news that this process was told to stop; if it comes, the job is given back. Its rollout
starts over: who went on would ask the sandbox what came of the command, and believe it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from prorl_celery.errors import StoppedInDoubt
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

SHELL_ADDS = 128
"""A shell's exit code for a command that a signal ended is the signal's number and this."""

DOUBTFUL = {SHELL_ADDS + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)}

DOUBT_SECONDS = 0.5
"""The worker gets the signal at the same time; what it costs is one look at its event loop."""


class DoubtfulShell:
    """A shell whose results are believed when the process was not told to stop, and the sandbox lives: as that dies its
    terminal hangs up, and the shell may tell of a command's end by that before its own.
    """

    def __init__(self, shell: Shell, job_signal: JobSignal, look: Callable[[], object] = lambda: None) -> None:
        """`look` raises `SandboxError` when the sandbox is gone."""
        self._shell = shell
        self._signal = job_signal
        self._look = look

    def run(self, command: str, *, timeout: float) -> CommandResult:
        """As `Shell.run`. Raises `Stopping` too, when the end of the command came with the order to stop."""
        result = self._shell.run(command, timeout=timeout)
        self._doubt(result)
        return result

    def recover(self, *, timeout: float) -> Recovered:
        """As `Shell.recover`, with the same doubt."""
        recovered = self._shell.recover(timeout=timeout)
        self._doubt(recovered)
        return recovered

    def _doubt(self, result: CommandResult) -> None:
        if result.exit_code in DOUBTFUL:
            self._signal.raise_if_stopping_within(DOUBT_SECONDS, StoppedInDoubt)
            self._look()


class DoubtfulKernel:
    """A kernel whose end is believed when the process was not told to stop."""

    def __init__(self, kernel: Kernel, job_signal: JobSignal) -> None:
        self._kernel = kernel
        self._signal = job_signal

    def run(self, code: str, *, timeout: float) -> CellResult:
        """As `Kernel.run`. Raises `Stopping` too, when the kernel's end came with the order to stop."""
        result = self._kernel.run(code, timeout=timeout)
        self._doubt(result)
        return result

    def recover(self, *, timeout: float) -> RecoveredCell:
        """As `Kernel.recover`, with the same doubt."""
        recovered = self._kernel.recover(timeout=timeout)
        self._doubt(recovered)
        return recovered

    def restart(self) -> None:
        self._kernel.restart()

    def _doubt(self, result: CellResult) -> None:
        if not result.timed_out and not DOUBTFUL.isdisjoint((result.kernel_ended, result.kernel_lost)):
            self._signal.raise_if_stopping_within(DOUBT_SECONDS, StoppedInDoubt)


class DoubtfulSandbox:
    """A sandbox with such a shell and such a kernel."""

    def __init__(self, sandbox: Sandbox, job_signal: JobSignal) -> None:
        self._sandbox = sandbox
        self._shell = DoubtfulShell(sandbox.shell, job_signal, lambda: sandbox.files.listing("/"))
        self._signal = job_signal
        self.stopped = False

    @property
    def handle(self) -> SandboxHandle:
        return self._sandbox.handle

    @property
    def shell(self) -> Shell:
        return self._shell

    @property
    def files(self) -> Files:
        return self._sandbox.files

    @property
    def kernel(self) -> Kernel:
        return DoubtfulKernel(self._sandbox.kernel, self._signal)

    @property
    def marked(self) -> str:
        return self._sandbox.marked

    def mark(self, name: str) -> None:
        self._sandbox.mark(name)

    def close(self) -> None:
        self._sandbox.close()

    def stop(self) -> None:
        self._sandbox.stop()
        self.stopped = True
