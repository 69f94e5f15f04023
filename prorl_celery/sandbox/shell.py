"""The agent's shell: one lasting bash on a pseudo-terminal, spoken to directly by the process that runs the job.

A command is sent as one line, `eval $'...'` with every awkward byte escaped, so that quotes left open, here-documents
and newlines are eval's business and never leave the terminal at a continuation prompt. Its standard input is empty
(`/dev/null`). Its end is a marker that carries a nonce of the sandbox and the id of the command (`shellrc.sh`).
The terminal's modes are set from this side before each command: raw input (no limit on a line), no echo, output as it
is, interrupt on ^C. So a command that changes them changes them for itself only.

A command past its time-out is interrupted, then killed, then its shell, then everything in the sandbox, each step
only when the one before did not bring the marker. The session itself is never lost to any of these.
"""

from __future__ import annotations

import os
import secrets
import select
import termios
import time

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import CancelSignal, CommandResult
from prorl_celery.sandbox.control import Control
from prorl_celery.sandbox.output import CappedOutput, normalise
from prorl_celery.sandbox.waiting import Waiter

READ_BYTES = 64 << 10
INTERRUPT = b"\x03"
INTERRUPT_SECONDS = 2.0
"""How long a command may take to end after ^C before it is killed."""
KILL_SECONDS = 1.0
"""How long the shell may take to come back after each harder step."""
SEND_SECONDS = 30.0
"""How long the shell may take to read a long command's line beyond the command's time-out."""
SYNCHRONISE_TRIES = 3
FORCE = (
    ("", INTERRUPT_SECONDS),
    ("interrupt", KILL_SECONDS),
    ("restart", KILL_SECONDS),
    ("killall", 10.0),
)
"""Requests to the first process after a time-out, each with the seconds it is given. The first is ^C alone."""
FIRST_TEND_SECONDS = 1.0
"""When the first process is asked to look after the shell; then after 4, 16, ... seconds. See `init.sh`."""
MARKER_BYTES = 8 << 10
"""Longest marker: a path and some digits."""
SHELL_STARTED = b"shell"
DRAIN_READS = 64
"""Reads of late output before a command; a background job that never stops printing must not hold it up."""

Marker = tuple[bytes, int, str]
"""Which command ended (or that a new shell stands), its exit code, the working directory."""


class PtyShell:
    """`Shell` over the pty's master descriptor, which stays the caller's to close."""

    def __init__(
        self, descriptor: int, *, nonce: str, control: Control, cancel: CancelSignal, output_bytes: int, workdir: str
    ) -> None:
        self._descriptor = descriptor
        self._control = control
        self._cancel = cancel
        self._waiter = Waiter(descriptor, cancel)
        self._output_bytes = output_bytes
        self._opening = b"\x02" + nonce.encode() + b":"
        self._closing = b"\x03" + nonce.encode() + b"\x04"
        self._id_base = secrets.token_hex(4)
        self._commands = 0
        self._cwd = workdir
        self._carry = b""
        self._to_send = memoryview(b"")

    def run(self, command: str, *, timeout: float) -> CommandResult:
        """Run one command to its end or its time-out (seconds). Raises as `Shell.run`."""
        self._cancel.raise_if_set()
        started = time.monotonic()
        output = CappedOutput(self._output_bytes)
        if "\0" in command:
            return CommandResult(
                output="bash: a command cannot contain a NUL byte\n", exit_code=2, cwd=self._cwd, duration_s=0.0
            )
        restarted = self._drain(output)
        command_id = self._send(command)
        ended = self._read_until(command_id, output, started + timeout)
        if ended is None and self._to_send:
            # Half a line in the terminal would become part of the next; a command not yet sent has not begun.
            ended = self._read_until(command_id, output, time.monotonic() + SEND_SECONDS)
        timed_out = ended is None
        if ended is None:
            ended = self._end_by_force(command_id, output)
        marker, status, self._cwd = ended
        return CommandResult(
            output=output.text(),
            exit_code=None if timed_out else status,
            cwd=self._cwd,
            duration_s=time.monotonic() - started,
            timed_out=timed_out,
            omitted_bytes=output.omitted_bytes,
            shell_restarted=restarted or marker == SHELL_STARTED,
        )

    def wait_ready(self, *, timeout: float) -> None:
        """Wait for a new sandbox's first prompt. Raises `SandboxError` with what the terminal said instead."""
        output = CappedOutput(4 << 10)
        try:
            ended = self._read_until(SHELL_STARTED, output, time.monotonic() + timeout)
        except SandboxError as error:
            said = " ".join(output.text().split())
            raise SandboxError(f"the sandbox ended while it started: {said or error}") from error
        if ended is None:
            raise SandboxError(f"the sandbox's shell did not start within {timeout:g} s: {output.text()!r}")

    def _drain(self, output: CappedOutput) -> bool:
        """Take what came since the last command (background jobs); say whether the shell was replaced meanwhile."""
        restarted = False
        for _ in range(DRAIN_READS):
            data = self._read()
            carry = self._carry + data
            while True:
                ended, carry = self._scan(carry, SHELL_STARTED, output)
                if ended is None:
                    break
                restarted = True
            self._carry = carry
            if not data:
                break
        return restarted

    def _send(self, command: str) -> bytes:
        self._commands += 1
        command_id = f"{self._id_base}{self._commands}".encode()
        line = b"".join(
            (
                b"__prorl_id=", command_id, b";eval $'", quote_command(command),
                b"' </dev/null >/dev/tty 2>&1;{ __prorl_end $? ", command_id, b"; } 2>/dev/null\n",
            )
        )  # fmt: skip
        self._set_modes()
        self._to_send = memoryview(line)
        self._write()
        return command_id

    def _set_modes(self) -> None:
        try:
            modes = termios.tcgetattr(self._descriptor)
            wanted = list(modes)
            wanted[0] = wanted[1] = 0
            # NOFLSH: an interrupt must not throw away what the command had printed.
            wanted[3] = termios.ISIG | termios.NOFLSH
            wanted[6] = list(modes[6])
            wanted[6][termios.VINTR] = INTERRUPT
            wanted[6][termios.VMIN] = 1
            wanted[6][termios.VTIME] = 0
            if wanted != modes:
                termios.tcsetattr(self._descriptor, termios.TCSANOW, wanted)
        except termios.error as error:
            raise SandboxError("the sandbox is gone") from error

    def _end_by_force(self, command_id: bytes, output: CappedOutput) -> Marker:
        """Bring the shell back to its prompt, by the gentlest step that does it."""
        self._to_send = memoryview(b"")
        self._set_modes()
        for operation, patience in FORCE:
            if operation:
                self._control.request(operation)
            if operation in ("", "interrupt"):
                # After a kill too: the shell would go on with the rest of the command.
                self._to_send = memoryview(INTERRUPT)
            ended = self._read_until(command_id, output, time.monotonic() + patience)
            if ended is not None and (operation not in ("", "interrupt") or self._synchronise()):
                return ended
        raise SandboxError("the sandbox's shell could not be brought back after a time-out")

    def _synchronise(self) -> bool:
        """Make sure that no interrupt is on its way which would hit the next command."""
        unwanted = CappedOutput(0)
        for _ in range(SYNCHRONISE_TRIES):
            command_id = self._send(":")
            if self._read_until(command_id, unwanted, time.monotonic() + KILL_SECONDS) is not None:
                return True
        return False

    def _read_until(self, command_id: bytes, output: CappedOutput, deadline: float) -> Marker | None:
        """Read (and send what waits) until the command's marker or a new shell's; None at the deadline."""
        tend_at = time.monotonic() + FIRST_TEND_SECONDS
        tend_after = FIRST_TEND_SECONDS
        carry, self._carry = self._carry, b""
        while True:
            if carry:
                ended, carry = self._scan(carry, command_id, output)
                if ended is not None:
                    self._carry = carry
                    return ended
            events = self._waiter.readable(min(deadline, tend_at), also_writable=bool(self._to_send))
            now = time.monotonic()
            if not events:
                if now >= deadline:
                    self._carry = carry
                    return None
                self._control.tend()
                tend_after *= 4
                tend_at = now + tend_after
                continue
            if self._to_send:
                self._write()
            if events & ~select.POLLOUT:
                carry += self._read()
            if now >= deadline:  # a flood of output must not outrun the time-out
                self._carry = carry
                return None

    def _scan(self, data: bytes, command_id: bytes, output: CappedOutput) -> tuple[Marker | None, bytes]:
        """Move what is plain output to `output`; return the marker, if it is there, and what is left to look at."""
        while True:
            start = data.find(self._opening)
            if start < 0:
                kept = _overlap(data, self._opening)
                output.add(memoryview(data)[: len(data) - kept])
                return None, data[len(data) - kept :]
            end = data.find(self._closing, start)
            if end < 0:
                output.add(memoryview(data)[:start])
                if len(data) - start > MARKER_BYTES:  # no marker of ours is that long
                    output.add(memoryview(data)[start : start + 1])
                    data = data[start + 1 :]
                    continue
                return None, data[start:]
            # A command may print what looks like the start of a marker; the marker is what stands before its end.
            start = data.rfind(self._opening, start, end)
            output.add(memoryview(data)[:start])
            parts = data[start + len(self._opening) : end].split(b":", 2)
            data = data[end + len(self._closing) :]
            # A marker of an earlier command is late, and nobody waits for it.
            if len(parts) == 3 and parts[0] in (command_id, SHELL_STARTED):
                status = int(parts[1]) if parts[1].isdigit() else 0
                return (parts[0], status, normalise(parts[2])), data

    def _write(self) -> None:
        try:
            sent = os.write(self._descriptor, self._to_send[:4096])
        except BlockingIOError:
            return
        except OSError as error:
            raise SandboxError("the sandbox is gone") from error
        self._to_send = self._to_send[sent:]

    def _read(self) -> bytes:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:  # EIO: nobody holds the other side any more
            raise SandboxError("the sandbox is gone") from error
        if not data:
            raise SandboxError("the sandbox is gone")
        return data


def _overlap(data: bytes, opening: bytes) -> int:
    """How many bytes at the end of `data` could be the start of `opening`."""
    for length in range(min(len(opening) - 1, len(data)), 0, -1):
        if data.endswith(opening[:length]):
            return length
    return 0


_ESCAPES = {byte: f"\\{byte:03o}".encode() for byte in (*range(32), 127, *b"\\'!")}
_TABLE = [_ESCAPES.get(byte, bytes((byte,))) for byte in range(256)]
_PLAIN = bytes(byte for byte in range(256) if byte not in _ESCAPES)


def quote_command(command: str) -> bytes:
    """The inside of bash's `$'...'`: control characters, quotes, backslashes and `!` as octal escapes."""
    raw = command.encode("utf-8", "surrogateescape")
    if not raw.translate(None, _PLAIN):
        return raw
    return b"".join([_TABLE[byte] for byte in raw])
