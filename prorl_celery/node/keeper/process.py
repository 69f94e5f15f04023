"""A sandbox's outer process and its pseudo-terminal, as the keeper holds them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any

from ptyprocess.ptyprocess import PtyProcessError

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.loop import Loop, Timer
from prorl_celery.node.keeper.orphans import children_in_session, children_of, kill, kill_marked
from prorl_celery.node.keeper.ptys import spawn
from prorl_celery.sandbox.launch import CONTROL, Launch
from prorl_celery.sandbox.limits import give_way
from prorl_celery.sandbox.owner import VARIABLE

ROWS, COLUMNS = 24, 250
"""A wide terminal: tools that fold their output to it would fold what a model reads."""
KILL_AGAIN_SECONDS = 1.0
LONGEST_AGAIN_SECONDS = 10.0
STUCK_KILLS = 5
"""A sandbox still there after this many kills is stuck: it has waited for something in the kernel for seconds."""


class SandboxProcess:
    """Starts a launch on a pty and says when all of it is gone, and before that when it would not go.

    `pty` and `control` are the descriptors that workers get copies of.
    """

    def __init__(
        self,
        launch: Launch,
        loop: Loop,
        *,
        ended: Callable[[], None],
        stuck: Callable[[], None],
        inner_pidfd: int | None = None,
    ) -> None:
        """`inner_pidfd`: the first process of a container beside ours (a Singularity instance), ended with ours.

        Raises: `SandboxError`; then nothing is left of either.
        """
        self._loop = loop
        self._ended = ended
        self._stuck = stuck
        self._launch = launch
        self._inner_pidfd = inner_pidfd
        self._left: dict[int, int] = {}  # pid -> pidfd of what outlived the outer process
        self._kill_timer: Timer | None = None
        self._over = False
        self.kills = 0
        with contextlib.ExitStack() as undo:
            if inner_pidfd is not None:
                undo.callback(os.close, inner_pidfd)
                undo.callback(signal_pidfd, inner_pidfd)
            ours, theirs = _pair()
            undo.callback(ours.close)
            with theirs:
                self._process: Any = self._spawn(theirs.fileno())
            self.pid: int = self._process.pid
            ours.setblocking(False)
            os.set_blocking(self._process.fd, False)
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except OSError as error:
                kill(self.pid)
                self._process.close()
                raise SandboxError(f"the sandbox could not be watched: {error}") from error
            undo.pop_all()
        self.control = ours
        loop.watch(self._pidfd, self._reap)

    @property
    def pty(self) -> int:
        descriptor: int = self._process.fd
        return descriptor

    @property
    def alive(self) -> bool:
        """Whether its terminal can be used."""
        return self._pidfd >= 0

    @property
    def lives(self) -> bool:
        """Whether it runs, though its end may not have been dealt with yet."""
        return self.alive and not _has_ended(self._pidfd)

    def kill(self) -> None:
        """Kill it and go on until it is gone. Returns at once."""
        if self._over:
            return
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self.kills += 1
        if self.alive:
            # The namespace's first process first: when it has gone everything in the namespace has, and the outer
            # process, which waits for it, ends after. From the second time on the outer one is killed as well.
            if self.kills > 1 or not self._kill_inner():
                self._kill_session()
                signal_pidfd(self._pidfd)
        elif self._settle(again=True):
            return
        again = min(LONGEST_AGAIN_SECONDS, KILL_AGAIN_SECONDS * max(1, self.kills - STUCK_KILLS))
        self._kill_timer = self._loop.after(again, self.kill)
        if self.kills == STUCK_KILLS:
            self._stuck()

    def _spawn(self, control: int) -> Any:
        user = self._launch.user

        passed = (control, *self._launch.passed)

        def prepare() -> None:
            for descriptor in passed:
                os.set_inheritable(descriptor, True)
            # Python ignores these, and a shell can't undo what it was started with: `yes | head` would complain.
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            give_way()
            if user is not None:
                user.become()

        try:
            return spawn(
                [str(control) if part == CONTROL else part for part in self._launch.argv],
                cwd=self._launch.cwd,
                env=self._launch.env,
                echo=False,
                preexec_fn=prepare,
                dimensions=(ROWS, COLUMNS),
                pass_fds=passed,
            )
        except (OSError, PtyProcessError) as error:
            raise SandboxError(f"the sandbox could not be started: {error}") from error

    def _kill_inner(self) -> bool:
        if self._inner_pidfd is not None:
            return signal_pidfd(self._inner_pidfd)
        if not self._launch.isolated:
            return False
        children = children_of(self.pid)
        for pid in children:
            kill(pid)
        return bool(children)

    def _kill_session(self) -> None:
        if not self._launch.isolated:
            kill_marked(self.pid, self._launch.env.get(VARIABLE))

    def _reap(self) -> None:
        """The outer process has ended. That is the sandbox's end when nothing of it is left behind."""
        pid, _ = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        self._loop.unwatch(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self.control.close()
        self._process.terminated = True  # reaped above
        self._process.close()
        if not self._settle(again=True) and self._kill_timer is None:
            self._kill_timer = self._loop.after(KILL_AGAIN_SECONDS, self.kill)

    def _look(self) -> None:
        self._settle()

    def _settle(self, *, again: bool = False) -> bool:
        """End and reap what outlived the outer process; it is a child of ours now. Say once that all has gone.

        `again`: send another kill to what has had one.
        """
        self._kill_session()
        if self._inner_pidfd is not None and not self._inner_ends(again):
            return False
        for pid in children_in_session(self.pid):
            if pid not in self._left:
                kill(pid)
                with contextlib.suppress(OSError):  # without it the next round of kills looks again
                    self._left[pid] = os.pidfd_open(pid)
                    self._loop.watch(self._left[pid], self._look)
            elif again:
                kill(pid)
        for pid, pidfd in list(self._left.items()):
            if _reaped(pid):
                self._forget(pidfd)
                del self._left[pid]
        # Those that have been orphaned in the meantime included.
        if self._left or children_in_session(self.pid):
            return False
        self._over = True
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._ended()
        return True

    def _inner_ends(self, again: bool) -> bool:
        """Whether the container beside the outer process has ended, too; else that is watched."""
        pidfd = self._inner_pidfd
        assert pidfd is not None
        if not _has_ended(pidfd):
            if again:
                signal_pidfd(pidfd)
                self._loop.unwatch(pidfd)
                self._loop.watch(pidfd, self._look)
            return False
        self._forget(pidfd)
        self._inner_pidfd = None
        return True

    def _forget(self, pidfd: int) -> None:
        self._loop.unwatch(pidfd)
        os.close(pidfd)


def signal_pidfd(pidfd: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; False where the process is gone."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


def _pair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise SandboxError(f"the sandbox could not be started: {error}") from error
