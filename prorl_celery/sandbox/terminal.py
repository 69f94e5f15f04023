"""The near side of the agent's pseudo-terminal: its modes, and bytes both ways without blocking.

The terminal's modes are set from this side before each command: raw input (no limit on a line), no echo, output as it
is, interrupt on ^C. So a command that changes them changes them for itself only.

What is read, and how much of a command's line was sent, is noted on the sandbox's page.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time
from collections.abc import Callable
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import CancelSignal
from prorl_celery.sandbox.notes import ShellNotes
from prorl_celery.sandbox.page import READ, WRITE, Page
from prorl_celery.sandbox.waiting import Waiter

READ_BYTES = 64 << 10
INTERRUPT = b"\x03"
AT_ONCE_BYTES = 1024
"""What the kernel takes whole or not at all into an empty terminal, and what bash reads at once. A line no longer than
this is sent by one write; of a longer one the end is a write of its own: without it nothing is run.
"""
TIOCGPTPEER = 0x5441
"""Opens the other end of a pseudo-terminal without its name (Linux 4.13)."""
_MODES = bytes(64)
"""Room for the kernel's form of the modes."""


class Terminal:
    """Reads and writes the pty's master descriptor, which stays the caller's to close.

    Every method raises `SandboxError` when the other side is gone, and `FenceLost` when another process has taken the
    sandbox over; `receive` also what the cancel signal raises.
    """

    def __init__(self, descriptor: int, cancel: CancelSignal, page: Page, notes: ShellNotes) -> None:
        self._descriptor = descriptor
        self._waiter = Waiter(descriptor, cancel)
        self._page = page
        self._notes = notes
        self._to_send = memoryview(b"")
        self._whole = self._noted = False
        self._modes = b""
        self.bytes_read = 0
        """Everything that was read from the terminal so far."""

    def set_modes(self) -> None:
        """Give the terminal the modes that we count on, if it has others."""
        try:
            # The kernel's own form, compared as it is: a fraction of what `tcgetattr` costs, for every command.
            if fcntl.ioctl(self._descriptor, termios.TCGETS, _MODES) != self._modes:
                self._change_modes()
        except (OSError, termios.error) as error:
            raise SandboxError("the sandbox is gone") from error

    def send(self, data: bytes, *, noted: bool = False, note: Callable[[], None] | None = None) -> None:
        """Begin to send `data`, in place of what was not sent yet. `receive` goes on with it.

        `noted`: it is the line of the command that was noted last, or the end of it; or `note` does that first.
        """
        self._to_send = memoryview(data)
        self._whole = len(data) <= AT_ONCE_BYTES
        self._noted = noted or note is not None
        if data:
            self._write(note)
        if len(self._to_send) == 1:
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

    def unread(self) -> int:
        """Bytes sent that nobody inside has read yet."""
        try:
            flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            inside = fcntl.ioctl(self._descriptor, TIOCGPTPEER, flags)
        except OSError as error:
            raise SandboxError("the sandbox is gone") from error
        try:
            count: int = struct.unpack("i", fcntl.ioctl(inside, termios.FIONREAD, bytes(4)))[0]
            return count
        finally:
            os.close(inside)

    def discard(self) -> None:
        """Throw away what was sent and not read."""
        self._to_send = memoryview(b"")
        self._page.begin(WRITE)
        try:
            termios.tcflush(self._descriptor, termios.TCOFLUSH)
        except termios.error as error:
            raise SandboxError("the sandbox is gone") from error
        finally:
            self._page.end()

    def receive(self, deadline: float) -> bytes | None:
        """Wait for output and go on sending; what was read (nothing, if only sent), or None at the deadline."""
        events = self._waiter.readable(deadline, also_writable=bool(self._to_send))
        if not events:
            return None
        if self._to_send:
            self._write()
            if not events & ~select.POLLOUT:
                return b""
        page, notes = self._page, self._notes
        page.begin(READ)
        try:
            data = os.read(self._descriptor, READ_BYTES)
            notes.log(data, time.monotonic())
        except BlockingIOError:
            return b""
        except OSError as error:  # EIO: nobody holds the other side any more
            raise SandboxError("the sandbox is gone") from error
        finally:
            page.end()
        if not data:
            raise SandboxError("the sandbox is gone")
        self.bytes_read += len(data)
        return data

    def _change_modes(self) -> None:
        self._page.begin(WRITE)
        try:
            termios.tcsetattr(self._descriptor, termios.TCSANOW, _wanted(termios.tcgetattr(self._descriptor)))
        finally:
            self._page.end()
        self._modes = fcntl.ioctl(self._descriptor, termios.TCGETS, _MODES)

    def _write(self, note: Callable[[], None] | None = None) -> None:
        out = self._to_send
        if not self._whole and len(out) > 1:
            out = out[:-1]
        self._page.begin(WRITE)
        try:
            if note is not None:
                note()
            sent = os.write(self._descriptor, out)
            if self._noted:
                self._notes.sent(sent)
        except BlockingIOError:
            return
        except OSError as error:
            raise SandboxError("the sandbox is gone") from error
        finally:
            self._page.end()
        self._to_send = self._to_send[sent:]
        self._whole = False


def _wanted(modes: list[Any]) -> list[Any]:
    """Our modes; the speed and the size of a character stay, they mean nothing here."""
    characters: list[bytes | int] = [b"\0"] * len(modes[6])
    characters[termios.VINTR] = INTERRUPT
    characters[termios.VMIN] = 1
    characters[termios.VTIME] = 0
    # NOFLSH: an interrupt must not throw away what the command had printed.
    return [0, 0, modes[2], termios.ISIG | termios.NOFLSH, modes[4], modes[5], characters]
