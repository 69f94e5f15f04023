"""The agent's shell: one lasting bash on a pseudo-terminal, spoken to directly by the process that runs the job.

`markers` has what is sent and how a command's end is known, `terminal` the bytes both ways, `shellrc.sh` what answers.
Here is the order of things, and what is done about a command that does not end.

A command past its time-out is interrupted, then killed, then its shell, then everything in the sandbox, each step
only when the one before did not bring the marker. The session itself is never lost to any of these.
"""

from __future__ import annotations

import secrets
from time import monotonic
from typing import NamedTuple

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import CancelSignal, CommandResult, Recovered
from prorl_celery.sandbox.control import Control
from prorl_celery.sandbox.markers import SHELL_ENDED, SHELL_STARTED, TRACES, Marker, Markers, command_line
from prorl_celery.sandbox.output import CappedOutput
from prorl_celery.sandbox.terminal import INTERRUPT, Terminal

INTERRUPT_SECONDS = 2.0
"""How long a command may take to end after ^C before it is killed."""
KILL_SECONDS = 1.0
"""How long the shell may take to come back after each harder step."""
SEND_SECONDS = 30.0
"""How long the shell may take to read a long command's line beyond the command's time-out."""
TIDY_SECONDS = 5.0
RESTART_SECONDS = 10.0
SYNCHRONISE_TRIES = 3
WHOLE_LINE_BYTES = 1024
"""What bash reads at once, and what stands in the terminal for sure before it does."""
FORCE = (
    ("", INTERRUPT_SECONDS),
    ("interrupt", KILL_SECONDS),
    ("restart", KILL_SECONDS),
    ("killall", 10.0),
)
"""Requests to the first process after a time-out, each with the seconds it is given. The first is ^C alone."""
FIRST_TEND_SECONDS = 1.0
"""When the first process is asked to look after the shell; then after 4, 16, ... seconds. See `init.sh`."""


class _Run(NamedTuple):
    """How a command went."""

    output: CappedOutput
    marker: Marker
    was_run: bool
    timed_out: bool


class PtyShell:
    """`Shell` over the pty's master descriptor, which stays the caller's to close."""

    def __init__(
        self, descriptor: int, *, nonce: str, control: Control, cancel: CancelSignal, output_bytes: int, workdir: str
    ) -> None:
        self._terminal = Terminal(descriptor, cancel)
        self._markers = Markers(nonce)
        self._control = control
        self._cancel = cancel
        self._output_bytes = output_bytes
        self._id_base = secrets.token_hex(2).encode()
        self._commands = self._sent = 0
        self._cwd = workdir
        self._status = 0
        self._ran: bytes | None = None
        """What the last marker said was begun last."""
        self._shell_pid = b""
        self._shell_group = 0
        """The shell's process group, as this process sees it; 0 until it was seen at its prompt."""
        self._restarted = self._nudged = False
        self._carry = b""
        self.bytes_moved = 0
        """Bytes of output copied within this process so far, beyond reading them; see `bytes_read`."""

    @property
    def bytes_read(self) -> int:
        """Bytes read from the terminal so far."""
        return self._terminal.bytes_read

    def run(self, command: str, *, timeout: float) -> CommandResult:
        """Run one command to its end or its time-out (seconds). Raises as `Shell.run`."""
        self._cancel.raise_if_set()
        started = monotonic()
        if "\0" in command:
            return CommandResult(
                output="bash: a command cannot contain a NUL byte\n", exit_code=2, cwd=self._cwd, duration_s=0.0
            )
        self._restarted = self._nudged = False
        output, marker, was_run, timed_out = self._execute(command, started + timeout)
        for remedy in () if was_run else (self._tidy, self._replace):
            remedy()
            output, marker, was_run, timed_out = self._execute(command, monotonic() + timeout)
            if was_run:
                break
        if not was_run:
            raise SandboxError(f"the sandbox's shell runs no commands: {output.text()!r}")
        self._status, self._cwd = marker.status, marker.cwd
        if (marker.untidy or self._nudged) and not timed_out:
            self._cwd = self._tidy()
        for trace in TRACES if marker.traced else ():
            output.cut_last_line(trace)
        text = output.text()
        self.bytes_moved += output.moved_bytes
        return CommandResult(
            output=text,
            exit_code=None if timed_out else marker.status,
            cwd=self._cwd,
            duration_s=monotonic() - started,
            timed_out=timed_out,
            omitted_bytes=output.omitted_bytes,
            shell_restarted=self._restarted,
        )

    def recover(self, *, timeout: float) -> Recovered:
        """As `Shell.recover`."""
        raise SandboxError("the sandbox's shell cannot be taken over")

    def wait_ready(self, *, timeout: float) -> None:
        """Wait for a new sandbox's first prompt. Raises `SandboxError` with what the terminal said instead."""
        output = CappedOutput(4 << 10)
        try:
            marker = self._await((), output, monotonic() + timeout)
        except SandboxError as error:
            said = " ".join(output.text().split())
            raise SandboxError(f"the sandbox ended while it started: {said or error}") from error
        if marker is None:
            raise SandboxError(f"the sandbox's shell did not start within {timeout:g} s: {output.text()!r}")

    def _execute(self, command: str, deadline: float) -> _Run:
        before = self._ran
        command_id = self._send(command)
        output = CappedOutput(self._output_bytes)
        marker = self._await((command_id,), output, deadline, nudge=True)
        if marker is None and self._terminal.is_sending:
            # Half a line in the terminal would become part of the next; a command not yet sent has not begun.
            deadline = monotonic() + SEND_SECONDS
            marker = self._await((command_id,), output, deadline)
        if marker is not None and marker.command_id == SHELL_STARTED:
            marker = self._ended_with_its_shell(marker, command_id, output, deadline)
        if marker is None:
            return _Run(output, self._end_by_force(command_id, output), was_run=True, timed_out=True)
        return _Run(output, marker, was_run=marker.command_id != command_id or marker.ran != before, timed_out=False)

    def _send(self, command: str, *, tidy: bool = False, behind: bytes = b"") -> bytes:
        self._commands += 1
        command_id = b"%b%d" % (self._id_base, self._commands)
        line = command_line(command, command_id, status=self._status, tidy=tidy)
        self._terminal.set_modes()
        self._terminal.send(behind + line if behind else line)
        self._sent = len(line)
        return command_id

    def _ended_with_its_shell(
        self, started: Marker, command_id: bytes, output: CappedOutput, deadline: float
    ) -> Marker | None:
        """A new shell stands. Was the command read by the old one, or is it the new one that runs it? None as ever."""
        if self._sent > WHOLE_LINE_BYTES:
            # It may have been given the second half of the line. Of that, nothing is sent any more, and what it has
            # goes with it.
            self._terminal.send(b"")
            self._replace()
            return started
        probe = self._send(":")
        deadline = max(deadline, monotonic() + KILL_SECONDS)
        marker = self._await((command_id, probe), output, deadline)
        if marker is None:
            return None
        if probe in (marker.command_id, marker.ran):
            return started
        self._await((probe,), CappedOutput(0), monotonic() + KILL_SECONDS)
        return marker

    def _end_by_force(self, command_id: bytes, output: CappedOutput) -> Marker:
        """Bring the shell back to its prompt, by the gentlest step that does it."""
        self._terminal.send(b"")
        self._terminal.set_modes()
        for operation, patience in FORCE:
            if operation:
                self._control.request(operation)
            if operation in ("", "interrupt"):
                # After a kill too: the shell would go on with the rest of the command.
                self._terminal.send(INTERRUPT)
            marker = self._await((command_id,), output, monotonic() + patience)
            if operation not in ("", "interrupt"):
                if marker is not None:
                    return marker
            elif marker is not None:
                if self._synchronise(SYNCHRONISE_TRIES):
                    return marker
            elif self._shell_group and self._terminal.foreground() == self._shell_group:
                # Perhaps the shell is at a prompt of the agent's own making.
                marker = self._synchronise(1)
                if marker is not None:
                    return marker
        raise SandboxError("the sandbox's shell could not be brought back after a time-out")

    def _synchronise(self, tries: int) -> Marker | None:
        """Make sure that no interrupt is on its way which would hit the next command; None if the shell is silent."""
        for _ in range(tries):
            # bash may lose a character to an interrupt that comes while it reads.
            probe = self._send(":", tidy=True, behind=b"\n")
            marker = self._await((probe,), CappedOutput(0), monotonic() + KILL_SECONDS)
            if marker is not None:
                return marker
        return None

    def _tidy(self) -> str:
        """Put right what a command did to the shell, or have a new one where that fails; its working directory."""
        probe = self._send(":", tidy=True)
        marker = self._await((probe,), CappedOutput(0), monotonic() + TIDY_SECONDS)
        if marker is None or marker.untidy or marker.ran not in (probe, self._shell_pid):
            return self._replace()
        return marker.cwd

    def _replace(self) -> str:
        """Have a new shell in place of one that is of no use any more; its working directory."""
        self._control.request("restart")
        marker = self._await((), CappedOutput(0), monotonic() + RESTART_SECONDS)
        if marker is None:
            raise SandboxError("the sandbox's shell runs no commands, and could not be replaced")
        return marker.cwd

    def _await(
        self, wanted: tuple[bytes, ...], output: CappedOutput, deadline: float, *, nudge: bool = False
    ) -> Marker | None:
        """Read (and send what waits) until a marker of a wanted command or a new shell; None at the deadline.

        After a syntax error bash may show its last prompt again. With `nudge` an unexpected prompt is answered by an
        empty line, which brings the right one.
        """
        tend_after = FIRST_TEND_SECONDS
        tend_at = monotonic() + tend_after
        data: bytes | None = b""
        while True:
            while data or self._carry:
                marker, self._carry = self._markers.scan(self._carry + (data or b""), output)
                if marker is None:
                    break
                data = b""
                if marker.command_id == SHELL_ENDED:
                    self._terminal.send(b"")
                    continue
                self._ran = marker.ran
                self._shell_group = self._shell_group or self._terminal.foreground()
                if marker.command_id in wanted:
                    return marker
                if marker.ran in wanted:
                    # Given up half-way. Why the second half was skipped is seen when it is tried again.
                    return marker._replace(status=marker.now, now=marker.now or 1)
                if marker.command_id == SHELL_STARTED and marker.ran != self._shell_pid:
                    self._shell_pid, self._restarted, self._status = marker.ran, True, 0
                    self._shell_group = self._terminal.foreground()
                    return marker
                if nudge and not self._nudged and not self._terminal.is_sending:
                    self._nudged = True
                    self._terminal.send(b"\n")
            now = monotonic()
            if now >= deadline:  # also when there was data: a flood of output must not outrun the time-out
                return None
            if data is None:
                self._control.tend()
                tend_after *= 4
                tend_at = now + tend_after
            data = self._terminal.receive(min(deadline, tend_at))
