"""The agent's shell: one lasting bash on a pseudo-terminal, spoken to directly by the process that runs the job.

`prompts` goes from one prompt to the next, `takeover` finds out what a holder before us left half-done. Here is the
order of things, and what is done about a command that does not end.

A command past its time-out is interrupted, then killed, then its shell, then everything in the sandbox, each step
only when the one before did not bring the marker. The session itself is never lost to any of these.
"""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import CancelSignal, CommandResult, Recovered
from prorl_celery.sandbox.control import Control
from prorl_celery.sandbox.markers import SHELL_STARTED, TRACES, Marker
from prorl_celery.sandbox.notes import IDLE, RESTARTED, TIMED_OUT, TRACED, ShellNotes
from prorl_celery.sandbox.output import CappedOutput
from prorl_celery.sandbox.page import NOTE, Page
from prorl_celery.sandbox.prompts import Prompts
from prorl_celery.sandbox.takeover import Takeover
from prorl_celery.sandbox.terminal import AT_ONCE_BYTES, INTERRUPT, Terminal

INTERRUPT_SECONDS = 2.0
"""How long a command may take to end after ^C before it is killed."""
KILL_SECONDS = 1.0
"""How long the shell may take to come back after each harder step."""
SEND_SECONDS = 30.0
"""How long the shell may take to read a long command's line beyond the command's time-out."""
FORCE = (
    ("", INTERRUPT_SECONDS),
    ("interrupt", KILL_SECONDS),
    ("restart", KILL_SECONDS),
    ("killall", 10.0),
)
"""Requests to the first process after a time-out, each with the seconds it is given. The first is ^C alone."""


class Run(NamedTuple):
    """How a command went."""

    output: CappedOutput
    marker: Marker
    was_run: bool
    timed_out: bool


class PtyShell:
    """`Shell` over the pty's master descriptor, which stays the caller's to close."""

    def __init__(
        self,
        descriptor: int,
        *,
        nonce: str,
        control: Control,
        cancel: CancelSignal,
        output_bytes: int,
        workdir: str,
        page: Page,
        notes: ShellNotes,
    ) -> None:
        self._terminal = Terminal(descriptor, cancel, page, notes)
        self._prompts = Prompts(self._terminal, nonce=nonce, control=control, page=page, notes=notes)
        self._takeover = Takeover(
            self._prompts, self._terminal, nonce=nonce, page=page, notes=notes, output_bytes=output_bytes, end=self._end
        )
        self._control = control
        self._cancel = cancel
        self._page = page
        self._notes = notes
        self._output_bytes = output_bytes
        self._cwd = notes.cwd or workdir
        self._is_mine = notes.state == IDLE
        """It is known to be at its prompt, with nothing under way."""
        self.bytes_moved = 0
        """Bytes of output copied within this process so far, beyond reading them and noting them for a successor."""

    @property
    def bytes_read(self) -> int:
        """Bytes read from the terminal so far."""
        return self._terminal.bytes_read

    def run(self, command: str, *, timeout: float) -> CommandResult:
        """Run one command to its end or its time-out (seconds). Raises as `Shell.run`."""
        self._cancel.raise_if_set()
        self._page.check()
        if not self._is_mine:
            self.recover(timeout=timeout)
        started = monotonic()
        if "\0" in command:
            return CommandResult(
                output="bash: a command cannot contain a NUL byte\n", exit_code=2, cwd=self._cwd, duration_s=0.0
            )
        prompts = self._prompts
        prompts.restarted = prompts.nudged = False
        self._is_mine = False
        output, marker, was_run, timed_out = self._execute(command, started + timeout)
        for remedy in () if was_run else (prompts.tidy, prompts.replace):
            remedy()
            output, marker, was_run, timed_out = self._execute(command, monotonic() + timeout)
            if was_run:
                break
        if not was_run:
            raise SandboxError(f"the sandbox's shell runs no commands: {output.text()!r}")
        prompts.status, self._cwd = marker.status, marker.cwd
        exit_code = None if timed_out else marker.status
        to_tidy = (marker.untidy or prompts.nudged) and not timed_out
        self._page.begin(NOTE)  # rather than `with`: this is done for every command
        self._notes.result(exit_code, self._flags(marker, timed_out), at=monotonic())
        if not to_tidy:
            self._notes.idle(prompts.state, self._cwd)
        self._page.end()
        if to_tidy:
            self._cwd = prompts.tidy()
            with self._page:
                self._notes.idle(prompts.state, self._cwd)
        self._is_mine = True
        for trace in TRACES if marker.traced else ():
            output.cut_last_line(trace)
        text = output.text()
        self.bytes_moved += output.moved_bytes
        return CommandResult(
            output=text,
            exit_code=exit_code,
            cwd=self._cwd,
            duration_s=monotonic() - started,
            timed_out=timed_out,
            omitted_bytes=output.omitted_bytes,
            shell_restarted=prompts.restarted,
        )

    def recover(self, *, timeout: float) -> Recovered:
        """As `Shell.recover`."""
        self._cancel.raise_if_set()
        self._is_mine = False
        self._control.synchronise()
        recovered = self._takeover.recover(timeout)
        self._cwd = recovered.cwd
        self._is_mine = True
        return recovered

    def wait_ready(self, *, timeout: float) -> None:
        """Wait for a new sandbox's first prompt. Raises `SandboxError` with what the terminal said instead."""
        output = CappedOutput(4 << 10)
        try:
            marker = self._prompts.wait((), output, monotonic() + timeout)
        except SandboxError as error:
            said = " ".join(output.text().split())
            raise SandboxError(f"the sandbox ended while it started: {said or error}") from error
        if marker is None:
            raise SandboxError(f"the sandbox's shell did not start within {timeout:g} s: {output.text()!r}")
        with self._page:
            self._notes.idle(self._prompts.state, self._cwd)
        self._is_mine = True

    def _flags(self, marker: Marker, timed_out: bool) -> int:
        return timed_out * TIMED_OUT + self._prompts.restarted * RESTARTED + (marker.traced and not timed_out) * TRACED

    def _execute(self, command: str, deadline: float) -> Run:
        before = self._prompts.ran
        command_id = self._prompts.send(command, noted=True)
        return self._end(command_id, before, CappedOutput(self._output_bytes), deadline)

    def _end(self, command_id: bytes, before: bytes | None, output: CappedOutput, deadline: float) -> Run:
        """See the end of a command that is being sent or was; `before` was begun last before it."""
        wait = self._prompts.wait
        marker = wait((command_id,), output, deadline, nudge=True)
        if marker is None and self._terminal.is_sending:
            # Half a line in the terminal would become part of the next; a command not yet sent has not begun.
            deadline = monotonic() + SEND_SECONDS
            marker = wait((command_id,), output, deadline)
        if marker is not None and marker.command_id == SHELL_STARTED:
            marker = self._ended_with_its_shell(marker, command_id, output, deadline)
        if marker is None:
            return Run(output, self._end_by_force(command_id, output), was_run=True, timed_out=True)
        return Run(output, marker, was_run=marker.command_id != command_id or marker.ran != before, timed_out=False)

    def _ended_with_its_shell(
        self, started: Marker, command_id: bytes, output: CappedOutput, deadline: float
    ) -> Marker | None:
        """A new shell stands. Was the command read by the old one, or is it the new one that runs it? None as ever."""
        prompts = self._prompts
        if self._notes.line_bytes > AT_ONCE_BYTES:
            # It may have been given the second half of the line. Of that, nothing is sent any more, and what it has
            # goes with it.
            self._terminal.send(b"")
            prompts.replace()
            return started
        probe = prompts.send(":")
        deadline = max(deadline, monotonic() + KILL_SECONDS)
        marker = prompts.wait((command_id, probe), output, deadline)
        if marker is None:
            return None
        if probe in (marker.command_id, marker.ran):
            return started
        prompts.wait((probe,), CappedOutput(0), monotonic() + KILL_SECONDS)
        return marker

    def _end_by_force(self, command_id: bytes, output: CappedOutput) -> Marker:
        """Bring the shell back to its prompt, by the gentlest step that does it."""
        self._terminal.send(b"")
        self._terminal.set_modes()
        prompts = self._prompts
        for operation, patience in FORCE:
            if operation:
                self._control.request(operation)
            if operation in ("", "interrupt"):
                # After a kill too: the shell would go on with the rest of the command.
                self._terminal.send(INTERRUPT)
            marker = prompts.wait((command_id,), output, monotonic() + patience)
            if operation not in ("", "interrupt"):
                if marker is not None:
                    return marker
            elif marker is not None:
                if prompts.synchronise():
                    return marker
            elif prompts.shell_group and self._terminal.foreground() == prompts.shell_group:
                # Perhaps the shell is at a prompt of the agent's own making.
                marker = prompts.synchronise(1)
                if marker is not None:
                    return marker
        raise SandboxError("the sandbox's shell could not be brought back after a time-out")
