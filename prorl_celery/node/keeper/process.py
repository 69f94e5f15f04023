"""A sandbox's outer process and its pseudo-terminal, as the keeper holds them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptyprocess import PtyProcess
from ptyprocess.ptyprocess import PtyProcessError

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.loop import Loop, Timer
from prorl_celery.node.keeper.orphans import kill_session_orphans
from prorl_celery.sandbox.launch import CONTROL, Launch

ROWS, COLUMNS = 24, 250
"""A wide terminal: tools that fold their output to it would fold what a model reads."""
KILL_AGAIN_SECONDS = 1.0


class SandboxProcess:
    """Starts a launch on a pty and says when all of it is gone.

    `pty` and `control` are the descriptors that workers get copies of.
    """

    def __init__(
        self, launch: Launch, loop: Loop, ended: Callable[[], None], *, inner_pidfd: int | None = None
    ) -> None:
        """`inner_pidfd`: the first process of a container beside ours (a Singularity instance); closed here."""
        self._loop = loop
        self._ended = ended
        self._launch = launch
        self._inner_pidfd = inner_pidfd
        self._kill_timer: Timer | None = None
        self.kills = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self._process: Any = PtyProcess.spawn(
                    [str(theirs.fileno()) if part == CONTROL else part for part in launch.argv],
                    cwd=launch.cwd,
                    env=launch.env,
                    echo=False,
                    preexec_fn=self._in_child(theirs.fileno()),
                    dimensions=(ROWS, COLUMNS),
                    pass_fds=(theirs.fileno(),),
                )
            except (OSError, PtyProcessError) as error:
                ours.close()
                raise SandboxError(f"the sandbox could not be started: {error}") from error
        # ptyprocess would sleep for these, and wait for a child that is ours to wait for.
        self._process.delayafterclose = self._process.delayafterterminate = 0
        ours.setblocking(False)
        os.set_blocking(self._process.fd, False)
        self.control = ours
        self.pid: int = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            _kill(self.pid)
            ours.close()
            self._process.close()
            raise SandboxError(f"the sandbox could not be watched: {error}") from error
        loop.watch(self._pidfd, self._reap)

    @property
    def pty(self) -> int:
        descriptor: int = self._process.fd
        return descriptor

    @property
    def alive(self) -> bool:
        return self._pidfd >= 0

    def kill(self) -> None:
        """Kill it and go on until it is gone. Returns at once."""
        if not self.alive:
            return
        self.kills += 1
        # The namespace's first process first: when it has gone everything in the namespace has, and the outer
        # process, which waits for it, ends after. From the second time on the outer one is killed as well.
        gentle = self.kills == 1 and self._kill_inner()
        if not gentle:
            if not self._launch.isolated:
                _kill_session(self.pid)
            _signal(self._pidfd)
        self._kill_timer = self._loop.after(KILL_AGAIN_SECONDS, self.kill)

    def _kill_inner(self) -> bool:
        if self._inner_pidfd is not None:
            return _signal(self._inner_pidfd)
        if not self._launch.isolated:
            return False
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
        except OSError:
            return False
        for pid in children:
            _kill(int(pid))
        return bool(children)

    def _reap(self) -> None:
        pid, _ = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        kill_session_orphans(self.pid)
        self._loop.unwatch(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self._inner_pidfd is not None:
            _signal(self._inner_pidfd)
            os.close(self._inner_pidfd)
        self.control.close()
        self._process.terminated = True  # reaped above
        self._process.close()
        self._ended()

    def _in_child(self, control: int) -> Callable[[], None]:
        user = self._launch.user

        def prepare() -> None:
            os.set_inheritable(control, True)
            if user is not None:
                user.become()

        return prepare


def _signal(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _kill_session(session: int) -> None:
    """Kill what shares a terminal session with a process: all there is to go by without a namespace."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            try:
                if pid != session and os.getsid(pid) == session:
                    _kill(pid)
            except ProcessLookupError:
                continue
