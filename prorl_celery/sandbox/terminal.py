"""The near side of the agent's pseudo-terminal: its modes, and bytes both ways without blocking.

The terminal's modes are set from this side before each command: raw input (no limit on a line), no echo, output as it
is, interrupt on ^C. So a command that changes them changes them for itself only.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import CancelSignal
from prorl_celery.sandbox.waiting import Waiter

READ_BYTES = 64 << 10
INTERRUPT = b"\x03"
_MODES = bytes(64)
"""Room for the kernel's form of the modes."""


class Terminal:
    """Reads and writes the pty's master descriptor, which stays the caller's to close.

    Every method raises `SandboxError` when the other side is gone; `receive` also what the cancel signal raises.
    """

    def __init__(self, descriptor: int, cancel: CancelSignal) -> None:
        self._descriptor = descriptor
        self._waiter = Waiter(descriptor, cancel)
        self._to_send = memoryview(b"")
        self._modes = b""
        self.bytes_read = 0
        """Everything that was read from the terminal so far."""

    def set_modes(self) -> None:
        """Give the terminal the modes that we count on, if it has others."""
        try:
            # The kernel's own form, compared as it is: a fraction of what `tcgetattr` costs, for every command.
            if fcntl.ioctl(self._descriptor, termios.TCGETS, _MODES) != self._modes:
                termios.tcsetattr(self._descriptor, termios.TCSANOW, _wanted(termios.tcgetattr(self._descriptor)))
                self._modes = fcntl.ioctl(self._descriptor, termios.TCGETS, _MODES)
        except (OSError, termios.error) as error:
            raise SandboxError("the sandbox is gone") from error

    def send(self, data: bytes) -> None:
        """Begin to send `data`, in place of what was not sent yet. `receive` goes on with it."""
        self._to_send = memoryview(data)
        if data:
            self._write()

    @property
    def is_sending(self) -> bool:
        return bool(self._to_send)

    def foreground(self) -> int:
        """The process group that has the terminal, as this process sees it; 0 for none."""
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:
            return 0

    def receive(self, deadline: float) -> bytes | None:
        """Wait for output and go on sending; what was read (nothing, if only sent), or None at the deadline."""
        events = self._waiter.readable(deadline, also_writable=bool(self._to_send))
        if not events:
            return None
        if self._to_send:
            self._write()
            if not events & ~select.POLLOUT:
                return b""
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:  # EIO: nobody holds the other side any more
            raise SandboxError("the sandbox is gone") from error
        if not data:
            raise SandboxError("the sandbox is gone")
        self.bytes_read += len(data)
        return data

    def _write(self) -> None:
        try:
            sent = os.write(self._descriptor, self._to_send)
        except BlockingIOError:
            return
        except OSError as error:
            raise SandboxError("the sandbox is gone") from error
        self._to_send = self._to_send[sent:]


def _wanted(modes: list[Any]) -> list[Any]:
    """Our modes; the speed and the size of a character stay, they mean nothing here."""
    characters: list[bytes | int] = [b"\0"] * len(modes[6])
    characters[termios.VINTR] = INTERRUPT
    characters[termios.VMIN] = 1
    characters[termios.VTIME] = 0
    # NOFLSH: an interrupt must not throw away what the command had printed.
    return [0, 0, modes[2], termios.ISIG | termios.NOFLSH, modes[4], modes[5], characters]
