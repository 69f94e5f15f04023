"""The keeper's part in kernels: the sockets that they are spoken to by, and the packages that they run on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.entry import Entry
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.work import ChildWork
from prorl_celery.sandbox import packages, wire
from prorl_celery.sandbox.kernel.start import KernelStart
from prorl_celery.sandbox.launch import Launch
from prorl_celery.settings import Settings

BACKLOG = 16
KINDS = (socket.SOCK_STREAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
"""Of the sockets shell, iopub and life."""
PUBLISH_SECONDS = 300.0
"""Copying some 300 MB takes seconds; from a slow network disk, minutes."""


class KernelSockets:
    """The listening sockets of one sandbox's kernels. They are inherited by the sandbox's first process, and have no
    name: a worker connects by a descriptor that `ours` are, which only the keeper hands out.

    Raises: `SandboxError` when out of descriptors; then nothing is left.
    """

    def __init__(self, directory: Path) -> None:
        with ExitStack() as undo, ExitStack() as at_once:
            listening, ours = [], []
            try:
                folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                at_once.callback(os.close, folder)
                # A name for the moment that it takes to open it. Sockets remember theirs, and whoever has them can ask.
                path = Path(f"/proc/self/fd/{folder}/kernel")
                for kind in KINDS:
                    listener = undo.enter_context(socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC))
                    path.unlink(missing_ok=True)
                    listener.bind(str(path))
                    ours.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
                    undo.callback(os.close, ours[-1])
                    path.unlink()
                    listener.listen(BACKLOG)
                    listening.append(listener)
            except OSError as error:
                raise SandboxError(f"no sockets could be made for a kernel: {error}") from error
            undo.pop_all()
        self._listening = listening
        self.ours = tuple(ours)

    @property
    def theirs(self) -> tuple[int, ...]:
        """What the sandbox inherits; until `inherited`."""
        return tuple(listener.fileno() for listener in self._listening)

    def inherited(self) -> None:
        """The sandbox has them: let go of its side."""
        for listener in self._listening:
            listener.close()
        self._listening = []

    def close(self) -> None:
        """Let go of all."""
        self.inherited()
        for descriptor in self.ours:
            os.close(descriptor)
        self.ours = ()


Ready = Callable[[SandboxError | None], None]


class Kernels:
    """Those of all sandboxes of one keeper. Calls about a sandbox without a kernel do nothing."""

    def __init__(self, settings: Settings, loop: Loop) -> None:
        self._settings = settings
        self._loop = loop
        self._sockets: dict[str, KernelSockets] = {}
        self._work: ChildWork | None = None
        self._waiting: list[Ready] = []

    @property
    def pids(self) -> set[int]:
        """Children of this process that are its own."""
        return set() if self._work is None else {self._work.pid}

    def are_prepared(self, entry: Entry, share: Callable[[], Path], ready: Ready) -> bool:
        """Whether all is there that such a sandbox's kernel needs. If not, `ready` is called when a child has published
        the packages in `share`; after a failure the next call tries again. Raises: `SandboxError`, what `share` raises.
        """
        if not entry.spec.kernel:
            return True
        self._sockets[entry.sandbox_id] = KernelSockets(wire.keeper_directory(self._settings))
        # Those of an image with a /usr of its own do not need them, but that is not known before it is read.
        if packages.are_published(share()):
            return True
        if self._work is None:
            names, target = self._settings.kernel_packages, share()
            self._work = ChildWork(
                lambda: packages.publish(names, target), self._loop, self._published, timeout=PUBLISH_SECONDS
            )
        self._waiting.append(ready)
        return False

    def equip(self, entry: Entry, launch: Launch, share: Callable[[], Path]) -> Launch:
        """The launch of a sandbox that can start kernels; for one that is prepared."""
        sockets = self._sockets.get(entry.sandbox_id)
        if sockets is None:
            return launch
        start = KernelStart(sockets=sockets.theirs, output_bytes=self._settings.tool_output_bytes)
        if entry.borrows_usr:
            python = packages.kernel_python(share())
            # Without a mount namespace they are seen where they are.
            seen_at = str(share() / packages.PACKAGES) if entry.kind == "local" else python.packages
            start = replace(start, program=python.program, packages=seen_at)
        return replace(launch, argv=(*launch.argv, *start.arguments()), passed=sockets.theirs)

    def inherited(self, sandbox_id: str) -> None:
        """The sandbox's first process has started, and has its side of the sockets."""
        if sandbox_id in self._sockets:
            self._sockets[sandbox_id].inherited()

    def descriptors(self, sandbox_id: str) -> tuple[int, ...]:
        """What a worker gets to connect by."""
        return self._sockets[sandbox_id].ours if sandbox_id in self._sockets else ()

    def gone(self, sandbox_id: str) -> None:
        """The sandbox is no more."""
        if sandbox_id in self._sockets:
            self._sockets.pop(sandbox_id).close()

    def close(self) -> None:
        """Give up what is under way."""
        if self._work is not None:
            self._work.kill()

    def _published(self, _: Any, error: SandboxError | None) -> None:
        self._work = None
        waiting, self._waiting = self._waiting, []
        for ready in waiting:
            ready(error)
