"""A live sandbox as a worker holds it: the shell, the files, and the descriptors they use."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.base import CancelSignal, SandboxHandle
from prorl_celery.sandbox.control import Control, ControlFiles
from prorl_celery.sandbox.kernel.life import KernelLife
from prorl_celery.sandbox.kernel.notes import KernelNotes
from prorl_celery.sandbox.notes import FileNotes, Mark, ShellNotes
from prorl_celery.sandbox.page import Page
from prorl_celery.sandbox.shell import PtyShell

if TYPE_CHECKING:
    from prorl_celery.sandbox.kernel.client import SandboxKernel

KERNEL_SOCKETS = 3


class LiveSandbox:
    """`Sandbox` over descriptors from the keeper. One thread, of one process, at a time may use it: they would mix."""

    def __init__(
        self,
        handle: SandboxHandle,
        descriptors: Sequence[int],
        *,
        nonce: str,
        slot: int,
        cancel: CancelSignal,
        output_bytes: int,
        stop: Callable[[str], None],
    ) -> None:
        self.handle = handle
        self._pty, control, page, *self._kernel_sockets = descriptors
        channel = socket.socket(fileno=control)
        try:
            self._page = Page(page, slot=slot)
            self._page.hold()
        except BaseException as error:
            channel.close()
            wire.close_all([self._pty, *self._kernel_sockets])
            if isinstance(error, OSError):
                raise SandboxError(f"the sandbox's page could not be mapped: {error}") from error
            raise
        finally:
            os.close(page)
        self._file_notes, self._shell_notes = FileNotes(self._page), ShellNotes(self._page)
        self._kernel_notes, self._mark = KernelNotes(self._page), Mark(self._page)
        self._control = Control(channel, cancel, self._page, self._file_notes)
        self._stop = stop
        self._closed = False
        self._nonce = nonce
        self._cancel = cancel
        self._output_bytes = output_bytes
        self._life: KernelLife | None = None
        self._kernel: SandboxKernel | None = None
        self.shell = PtyShell(
            self._pty,
            nonce=nonce,
            control=self._control,
            cancel=cancel,
            output_bytes=output_bytes,
            workdir=handle.workdir,
            page=self._page,
            notes=self._shell_notes,
        )
        self.files = ControlFiles(self._control)

    @property
    def kernel(self) -> SandboxKernel:
        """Connected to at the first use, for which ZeroMQ is loaded. Raises as `Sandbox.kernel`."""
        if self._kernel is None:
            shell, iopub, _ = self._sockets()
            from prorl_celery.sandbox.kernel.client import SandboxKernel

            kernel = SandboxKernel(
                (shell, iopub),
                life=self.kernel_life,
                key=self._nonce,
                cancel=self._cancel,
                output_bytes=self._output_bytes,
                page=self._page,
                notes=self._kernel_notes,
            )
            kernel.open()
            self._kernel = kernel
        return self._kernel

    @property
    def kernel_life(self) -> KernelLife:
        """The start and the end of its kernel, for which nothing needs to be loaded. Raises `SandboxError`."""
        if self._life is None:
            _, _, life = self._sockets()
            self._life = KernelLife(life, self._control, self._cancel)
        return self._life

    @property
    def marked(self) -> str:
        return self._mark.name

    def mark(self, name: str) -> None:
        """As `Sandbox.mark`."""
        with self._page:
            self._mark.change(name, self._shell_notes, self._file_notes, self._kernel_notes)

    def close(self) -> None:
        """Close this process's descriptors. The sandbox lives on."""
        if not self._closed:
            self._closed = True
            if self._kernel is not None:
                self._kernel.close()
            if self._life is not None:
                self._life.close()
            os.close(self._pty)
            self._control.close()
            self._shell_notes.close()
            self._page.close()
            wire.close_all(self._kernel_sockets)

    def stop(self) -> None:
        """End the sandbox and everything in it. Idempotent. Raises `SandboxError`, `KeeperLost`."""
        self.close()
        self._stop(self.handle.sandbox_id)

    def _sockets(self) -> tuple[int, int, int]:
        if len(self._kernel_sockets) != KERNEL_SOCKETS:
            raise SandboxError("this sandbox was started without a kernel: its handler's `needs_kernel` said no")
        shell, iopub, life = self._kernel_sockets
        return shell, iopub, life
