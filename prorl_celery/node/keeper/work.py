"""Work of the keeper's that takes long, done in a forked child whose end is an event."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
from collections.abc import Callable
from typing import Any

from prorl_celery.errors import SandboxError, sandbox_error
from prorl_celery.node import prctl
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.orphans import descendants_of
from prorl_celery.node.keeper.process import KILL_AGAIN_SECONDS, STUCK_KILLS

log = logging.getLogger(__name__)

OUTPUT_BYTES = 64 << 10
RESULT = b"\n\x1eresult "
TEXT_LENGTH = 2000
ERROR = b"\n\x1eerror "
AHEAD = re.compile(rb"\n\x1eahead ([^\n]*)\n")


class ChildWork:
    """Runs a function in a child; calls `done(result, error)` when the child has ended.

    The function returns JSON; what it prints is the error's text when it fails. What it passes to `tell_ahead` goes to
    `ahead` while it works on. Forking without exec is safe here: the keeper has one thread.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        loop: Loop,
        done: Callable[[Any, SandboxError | None], None],
        *,
        timeout: float,
        ahead: Callable[[Any], None] | None = None,
        stuck: Callable[[], None] = lambda: None,
    ) -> None:
        """`stuck` is called when the child has been killed again and again, and is still there.

        Raises `OSError` when no child can be made; then nothing is left of it.
        """
        self._loop = loop
        self._done = done
        self._ahead = ahead
        self._stuck = stuck
        self._kills = 0
        self._said = bytearray()
        with contextlib.ExitStack() as undo:
            read, write = os.pipe()
            undo.callback(os.close, read)
            keeper = os.getpid()
            try:
                self.pid = os.fork()
                if self.pid == 0:
                    _child(function, write, keeper)
            finally:
                os.close(write)
            undo.callback(_end, self.pid)
            self._pidfd = os.pidfd_open(self.pid)
            undo.pop_all()
        os.set_blocking(read, False)
        self._pipe = read
        loop.watch(self._pidfd, self._ended)
        loop.watch(read, self._read)
        self._timer = loop.after(timeout, self.kill)

    def kill(self) -> None:
        """End the child and what it started, and go on until it has gone; then `done` is called."""
        below = descendants_of(self.pid)  # those with a session of their own are in no group of the child's
        # Its group is its own only once it has run; before that there is only itself.
        for send in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._kills += 1
        self._timer.cancel()
        self._timer = self._loop.after(KILL_AGAIN_SECONDS, self.kill)
        if self._kills == STUCK_KILLS:
            self._stuck()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, OUTPUT_BYTES)
        except BlockingIOError:
            return
        self._said += data
        del self._said[:-OUTPUT_BYTES]
        if not data:
            self._loop.unwatch(self._pipe)
        told = AHEAD.search(bytes(self._said))
        if told is not None and self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            del self._said[told.start() : told.end()]
            ahead(json.loads(told[1]))

    def _ended(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        self._read()
        self._timer.cancel()
        self._loop.unwatch(self._pidfd)
        self._loop.unwatch(self._pipe)
        os.close(self._pidfd)
        os.close(self._pipe)
        _, found, result = bytes(self._said).rpartition(RESULT)
        if status == 0 and found:
            self._done(json.loads(result), None)
        else:
            self._done(None, self._failure(status))

    def _failure(self, status: int) -> SandboxError:
        """The error that the child raised, with what was printed on the way to it."""
        printed, raised, error = bytes(self._said).rpartition(ERROR)
        text = " ".join((printed if raised else error).decode("utf-8", "replace").split())[-TEXT_LENGTH:]
        if raised:
            name, message = json.loads(error)
            return sandbox_error(name, f"{message}: {text}" if text else message)
        return SandboxError(f"starting the sandbox {'was killed' if os.WIFSIGNALED(status) else 'failed'}: {text}")


def run_apart(function: Callable[[], object], *, keep: int) -> None:
    """Run a function in a child that nobody waits for; a failure is logged. It is reaped with strangers.

    `keep` is the one descriptor that the child keeps; it is closed here.
    """
    if os.fork():
        os.close(keep)
        return
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        os.closerange(3, keep)
        os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
        function()
    except (SandboxError, OSError, ValueError) as error:
        log.error("%s", error)
    finally:
        os._exit(0)


def tell_ahead(value: Any) -> None:
    """In the function of a `ChildWork`: pass on some JSON before it is done. Once."""
    os.write(1, b"\n\x1eahead " + json.dumps(value).encode() + b"\n")


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _child(function: Callable[[], Any], write: int, keeper: int) -> None:
    """The child's whole life. Never returns, and runs none of the keeper's clean-up."""
    code = 1
    try:
        prctl.die_with_parent(keeper)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(write, 1)
        os.dup2(write, 2)
        # Descriptors of other sandboxes and clients must not live on in here.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        result = json.dumps(function())
        os.write(1, RESULT + result.encode())
        code = 0
    except SandboxError as error:
        os.write(1, ERROR + json.dumps([type(error).__name__, str(error)]).encode())
    except (OSError, ValueError, ImportError) as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(code)
