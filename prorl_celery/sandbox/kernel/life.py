"""A kernel's start and end, as a worker sees them: no message of Jupyter's is needed for either.

The worker asks the sandbox's first process to start it, and connects to a socket whose other end the kernel takes as
the first thing it does. There it says how its start went; and the connection ends with it, whatever ends it.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from prorl_celery.errors import NoKernel, SandboxError
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.base import CancelSignal
from prorl_celery.sandbox.control import Control
from prorl_celery.sandbox.waiting import Waiter

KERNEL_SECONDS = 120.0
"""How long a kernel may take to start. It takes half a second, on a machine that has nothing else to do."""
FIRST_LOOK_SECONDS = 1.0
"""When it is asked whether a kernel that says nothing lives at all; then after 4, 16, ... seconds."""
SAID_BYTES = 4096
PACKET_BYTES = 64 << 10
NO_PYTHON = 2


class KernelLife:
    """One sandbox's kernel, or the next that stands for it. `descriptor` (the socket's, O_PATH) stays the caller's."""

    def __init__(self, descriptor: int, control: Control, cancel: CancelSignal) -> None:
        self._path = f"/proc/self/fd/{descriptor}"
        self._control = control
        self._cancel = cancel
        self._connection: socket.socket | None = None
        self._up = False
        self._refusal = 0
        self.name = ""
        """Of the kernel that was up last: no other has it."""

    def begin(self) -> int | None:
        """Have a kernel started unless one lives, and do not wait for it. Returns how the last one ended, as a shell
        tells it; None where none had.

        Raises: `SandboxError`, what the cancel signal raises.
        """
        self.close()
        try:
            self._connection = wire.new_socket()
            self._connection.connect(self._path)
        except OSError as error:
            raise SandboxError(f"the kernel's socket cannot be reached: {error.strerror or error}") from error
        self._refusal, said = self._control.request("kernel", limit_bytes=16)
        return int(said) if said.isdigit() else None

    def wait_up(self, timeout: float = KERNEL_SECONDS) -> None:
        """Return when it is up. Raises: `NoKernel` with what it said instead, `SandboxError`, what the cancel signal
        raises.
        """
        if self._up:
            return
        connection = self._connection
        if self._refusal == NO_PYTHON:
            raise NoKernel("the sandbox has no python3 for a kernel: use an image with Python and ipykernel")
        if connection is None or self._refusal:
            raise NoKernel(f"the kernel could not be started (code {self._refusal})")
        waiter = Waiter(connection.fileno(), self._cancel)
        deadline = time.monotonic() + timeout
        look_after = FIRST_LOOK_SECONDS
        while not waiter.readable(min(deadline, time.monotonic() + look_after)):
            look_after *= 4
            if not self.signal(0):
                raise NoKernel("the sandbox's kernel ended as soon as it was started")
            if time.monotonic() >= deadline:
                raise NoKernel(f"the sandbox's kernel was not up within {timeout:g} s")
        said = _read(connection)
        if said.startswith(b"up "):
            self._up = True
            self.name = said[3:].decode("ascii", "replace")[:32]
        elif b"No module named 'ipykernel'" in said:
            raise NoKernel("the sandbox's python3 has no ipykernel: install it in the image (pip install ipykernel)")
        else:
            reason = said.decode("utf-8", "replace").removeprefix("failed ") or "it ended as it started"
            raise NoKernel(f"the sandbox's kernel did not start: {reason}")

    @property
    def has_begun(self) -> bool:
        """Whether there is one, starting or up, as far as is known here."""
        return self._connection is not None

    def fileno(self) -> int:
        """A descriptor that becomes readable when the kernel has ended; once it is up."""
        return -1 if self._connection is None else self._connection.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether the kernel that was up is gone."""
        if self._connection is None:
            return True
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(0)) and not _read(self._connection)

    def last_cell(self, timeout: float, limit_bytes: int) -> dict[str, Any]:
        """What a kernel that is up says that it keeps of its last cell (`shown.LastCell`): it may be anything, as the
        agent's code runs there too. Empty where it keeps silent. Raises what the cancel signal raises.
        """
        connection, said = self._connection, bytearray()
        if connection is None:
            return {}
        waiter = Waiter(connection.fileno(), self._cancel)
        deadline = time.monotonic() + timeout
        with suppress(OSError):
            connection.send(b"last")
            while waiter.readable(deadline):
                packet = connection.recv(PACKET_BYTES)
                if packet[:1] == b"+" and len(said) < limit_bytes:
                    said += packet[1:]
                    continue
                with suppress(ValueError, RecursionError):
                    told = json.loads(said) if packet == b"." else None
                    if isinstance(told, dict):
                        return told
                break
        self.close()  # an answer may yet come that nobody waits for
        return {}

    def signal(self, number: int) -> bool:
        """Send the kernel, and what it runs in the foreground, a signal; False when there is no kernel.

        Raises: `SandboxError`, what the cancel signal raises.
        """
        code, _ = self._control.request("kernel_signal", size=number)
        return code == 0

    def kill(self) -> None:
        """End it. Raises as `signal`."""
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Close our end; the kernel lives on."""
        self._up = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _read(connection: socket.socket) -> bytes:
    """What it says; nothing at its end."""
    try:
        return connection.recv(SAID_BYTES)
    except BlockingIOError:
        return b"?"
    except OSError:
        return b""


def describe(status: int) -> str:
    """How a kernel ended, from a shell's exit code."""
    if status <= 128:
        return f"exit code {status}"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        name = str(status - 128)
    return f"signal {name}" + (", as when memory runs out" if name == "SIGKILL" else "")
