"""Where the keeper's clients connect: a socket in a directory that is the keeper's alone while it lives.

Out of descriptors it takes one connection at a time, on a descriptor kept for that, and asks for no more until that one
has gone: the keeper goes on answering, and does not spin on a queue that it cannot take anything from.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from prorl_celery import folders
from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.sandbox import wire

log = logging.getLogger(__name__)

BACKLOG = 1024
PATIENCE_SECONDS = 2.0
"""How long the directory may still be another's: of a keeper that is ending, or of a janitor that looks."""
FULL_SECONDS = 0.05
"""Time between looks for a free descriptor while there was none."""
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Listens at `path` and gives each connection to `serve`.

    Raises: `SandboxError` when another keeper has the directory, `OSError`.
    """

    def __init__(self, path: Path, loop: Loop, serve: Callable[[socket.socket], object]) -> None:
        self._path = path
        self._loop = loop
        self._serve = serve
        lock = folders.hold(path.parent, PATIENCE_SECONDS)
        if lock is None:
            raise SandboxError(f"another keeper has {path.parent}")
        self._lock = lock
        path.parent.chmod(0o700)
        path.unlink(missing_ok=True)
        self._listener = wire.new_socket()
        self._listener.bind(str(path))
        self._listener.listen(BACKLOG)
        self._spare: int | None = None
        self._look()

    def close(self) -> None:
        """Take no more connections. The directory stays ours until this process ends: it is not empty yet."""
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _look(self) -> None:
        """Listen again when there is a descriptor to spare, else look later."""
        if self._listener.fileno() < 0:
            return
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._loop.after(FULL_SECONDS, self._look)
            return
        self._loop.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError as error:
            if error.errno in SHORTAGES:
                self._accept_last(error)
            return  # else the client has gone
        self._begin(channel)

    def _accept_last(self, shortage: OSError) -> None:
        log.warning("no more connections for the moment: %s", shortage)
        self._loop.unwatch(self._listener.fileno())
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        try:
            channel, _ = self._listener.accept()
        except OSError as error:
            log.warning("a connection could not be taken: %s", error)
        else:
            self._begin(channel)
        self._loop.after(FULL_SECONDS, self._look)

    def _begin(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._serve(channel)
