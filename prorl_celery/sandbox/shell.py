"""The agent's shell: one lasting bash on a pseudo-terminal, spoken to directly by the process that runs the job.

`markers` has what is sent and how a command's end is known, `terminal` the bytes both ways, `shellrc.sh` what answers.
Here is the order of things, and what is done about a command that does not end.

A command past its time-out is interrupted, then killed, then its shell, then everything in the sandbox, each step
only when the one before did not bring the marker. The session itself is never lost to any of these.
"""

from __future__ import annotations

import secrets
from time import monotonic

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import CancelSignal, CommandResult
from prorl_celery.sandbox.control import Control
from prorl_celery.sandbox.markers import SHELL_STARTED, Ended, Markers, command_line
from prorl_celery.sandbox.output import CappedOutput
from prorl_celery.sandbox.terminal import INTERRUPT, Terminal

INTERRUPT_SECONDS = 2.0
"""How long a command may take to end after ^C before it is killed."""
KILL_SECONDS = 1.0
"""How long the shell may take to come back after each harder step."""
SEND_SECONDS = 30.0
"""How long the shell may take to read a long command's line beyond the command's time-out."""
RESTART_SECONDS = 10.0
FORCE = (
    ("", INTERRUPT_SECONDS),
    ("interrupt", KILL_SECONDS),
    ("restart", KILL_SECONDS),
    ("killall", 10.0),
)
"""Requests to the first process after a time-out, each with the seconds it is given. The first is ^C alone."""
FIRST_TEND_SECONDS = 1.0
"""When the first process is asked to look after the shell; then after 4, 16, ... seconds. See `init.sh`."""


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
        self._id_base = secrets.token_hex(4).encode()
        self._commands = 0
        self._cwd = workdir
        self._status = 0
        self._to_mend = False
        self._restarted = False
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
        self._restarted = False
        output, ended, timed_out = self._execute(command, started + timeout)
        for remedy in (self._mend, self._replace):
            if ended.was_run:
                break
            remedy()
            output, ended, timed_out = self._execute(command, monotonic() + timeout)
        if not ended.was_run:
            raise SandboxError(f"the sandbox's shell runs no commands: {output.text()!r}")
        self._status, self._cwd = ended.status, ended.cwd
        text = output.text()
        self.bytes_moved += output.moved_bytes
        return CommandResult(
            output=text,
            exit_code=None if timed_out else ended.status,
            cwd=ended.cwd,
            duration_s=monotonic() - started,
            timed_out=timed_out,
            omitted_bytes=output.omitted_bytes,
            shell_restarted=self._restarted,
        )

    def wait_ready(self, *, timeout: float) -> None:
        """Wait for a new sandbox's first prompt. Raises `SandboxError` with what the terminal said instead."""
        output = CappedOutput(4 << 10)
        try:
            ended = self._read_until((SHELL_STARTED,), output, monotonic() + timeout)
        except SandboxError as error:
            said = " ".join(output.text().split())
            raise SandboxError(f"the sandbox ended while it started: {said or error}") from error
        if ended is None:
            raise SandboxError(f"the sandbox's shell did not start within {timeout:g} s: {output.text()!r}")

    def _execute(self, command: str, deadline: float) -> tuple[CappedOutput, Ended, bool]:
        """What the command printed, how it ended, and whether it had to be made to."""
        command_id = self._send(command)
        output = CappedOutput(self._output_bytes)
        ended = self._read_until((command_id, SHELL_STARTED), output, deadline)
        if ended is None and self._terminal.is_sending:
            # Half a line in the terminal would become part of the next; a command not yet sent has not begun.
            deadline = monotonic() + SEND_SECONDS
            ended = self._read_until((command_id, SHELL_STARTED), output, deadline)
        if ended is not None and ended.command_id == SHELL_STARTED:
            ended = self._ended_with_its_shell(ended, command_id, output, deadline)
        if ended is None:
            return output, self._end_by_force(command_id, output)._replace(was_run=True), True
        return output, ended, False

    def _send(self, command: str, *, interrupt: bool = False) -> bytes:
        self._commands += 1
        command_id = b"%b%d" % (self._id_base, self._commands)
        line = command_line(command, command_id, status=self._status, mend=self._to_mend)
        self._to_mend = False
        self._terminal.set_modes()
        # bash may take the next character with the interrupt.
        self._terminal.send(INTERRUPT + b"\n" + line if interrupt else line)
        return command_id

    def _ended_with_its_shell(
        self, ended: Ended, command_id: bytes, output: CappedOutput, deadline: float
    ) -> Ended | None:
        """A new shell stands. Was the command read by the old one, or is it the new one that runs it? None as ever."""
        # The new shell may have been given a piece of the line, to be forgotten before more stands behind it.
        in_pieces = self._terminal.is_sending
        probe = self._send(":", interrupt=in_pieces)
        deadline = max(deadline, monotonic() + KILL_SECONDS)
        later = self._read_until((command_id, probe, SHELL_STARTED), output, deadline)
        return ended if in_pieces or (later is not None and later.command_id == probe) else later

    def _end_by_force(self, command_id: bytes, output: CappedOutput) -> Ended:
        """Bring the shell back to its prompt, by the gentlest step that does it."""
        self._terminal.send(b"")
        for operation, patience in FORCE:
            if operation:
                self._control.request(operation)
            wanted: tuple[bytes, ...] = (command_id, SHELL_STARTED)
            if operation in ("", "interrupt"):
                # After a kill too: the shell would go on with the rest of the command. What stands behind the
                # interrupt is reached when the command is over, and only then will no interrupt hit the next one.
                wanted = (*wanted, self._send(":", interrupt=True))
            ended = self._read_until(wanted, output, monotonic() + patience)
            if ended is None:
                continue
            if ended.command_id in wanted[1:] or self._read_until(wanted[1:], CappedOutput(0), patience + monotonic()):
                return ended
        raise SandboxError("the sandbox's shell could not be brought back after a time-out")

    def _mend(self) -> None:
        """Have the shell mend itself before the next command."""
        self._to_mend = True

    def _replace(self) -> None:
        """Have a new shell in place of one that runs no commands any more."""
        self._control.request("restart")
        if self._read_until((SHELL_STARTED,), CappedOutput(0), monotonic() + RESTART_SECONDS) is None:
            raise SandboxError("the sandbox's shell runs no commands, and could not be replaced")

    def _read_until(self, wanted: tuple[bytes, ...], output: CappedOutput, deadline: float) -> Ended | None:
        """Read (and send what waits) until a marker of a wanted id; None at the deadline."""
        tend_after = FIRST_TEND_SECONDS
        tend_at = monotonic() + tend_after
        data: bytes | None = b""
        while True:
            if data or self._carry:
                ended, self._carry = self._markers.scan(self._carry + (data or b""), wanted, output)
                if ended is not None:
                    self._to_mend = ended.by_prompt
                    if ended.command_id == SHELL_STARTED:
                        self._restarted, self._status = True, 0
                    return ended
            now = monotonic()
            if now >= deadline:  # also when there was data: a flood of output must not outrun the time-out
                return None
            if data is None:
                self._control.tend()
                tend_after *= 4
                tend_at = now + tend_after
            data = self._terminal.receive(min(deadline, tend_at))
