"""A live sandbox as a worker holds it: the shell, the files, and the descriptors they use."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from prorl_celery.sandbox.base import CancelSignal, SandboxHandle
from prorl_celery.sandbox.control import Control, ControlFiles
from prorl_celery.sandbox.shell import PtyShell


class LiveSandbox:
    """`Sandbox` over descriptors from the keeper. One thread, of one process, at a time may use it: they would mix."""

    def __init__(
        self,
        handle: SandboxHandle,
        descriptors: tuple[int, int],
        *,
        nonce: str,
        cancel: CancelSignal,
        output_bytes: int,
        stop: Callable[[str], None],
    ) -> None:
        self.handle = handle
        self._pty, control = descriptors
        self._control = Control(socket.socket(fileno=control), cancel)
        self._stop = stop
        self._closed = False
        self.shell = PtyShell(
            self._pty,
            nonce=nonce,
            control=self._control,
            cancel=cancel,
            output_bytes=output_bytes,
            workdir=handle.workdir,
        )
        self.files = ControlFiles(self._control)

    def close(self) -> None:
        """Close this process's descriptors. The sandbox lives on."""
        if not self._closed:
            self._closed = True
            os.close(self._pty)
            self._control.close()

    def stop(self) -> None:
        """End the sandbox and everything in it. Idempotent. Raises `SandboxError`, `KeeperLost`."""
        self.close()
        self._stop(self.handle.sandbox_id)
