"""Words of the keeper on a sandbox's terminal: the agent reads them in the output of what was running."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from prorl_celery.node.keeper.process import SandboxProcess

TIOCGPTPEER = 0x5441
"""Opens the other end of a pseudo-terminal without its name (Linux 4.13)."""


def tell(process: SandboxProcess, text: str) -> None:
    """Write a line as if a program of the sandbox had, in brackets. Lost when the terminal is full or has gone."""
    if not process.alive:
        return
    with suppress(OSError):
        descriptor = fcntl.ioctl(process.pty, TIOCGPTPEER, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"\n[{text}]\n".encode())
        finally:
            os.close(descriptor)
