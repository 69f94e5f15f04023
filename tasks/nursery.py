"""Killable child processes for code that may block in C or burn CPU: graders, users' own functions.

    stage process (threads) --SEQPACKET--> nursery (one thread, warm) --fork--> child
                    '----------- a stream socket of its own per call -----------'

The nursery is forked before the stage process has threads, so that its forks are safe and cost a millisecond: no
interpreter is started. A call passes `module:function` and JSON, and gets JSON back; of a child that ended without an
answer the nursery tells how. The caller holds a pidfd of the child, so that a kill never meets another process that got
the same pid.

A nursery that has died cannot be made anew: the stage process has threads now. The process is retired for a fresh one
(`tasks/warden.py` watches `fileno()`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from prorl_celery.errors import ChildLost, HandlerError, LostWorker, NodeExhausted, StageTimeout, Stopping
from prorl_celery.sandbox.base import CancelSignal
from prorl_celery.sandbox.owner import VARIABLE, this_process
from tasks.cradle import ENDED, HEADER, TRAILER, await_end, become_nursery

REPLY_LIMIT_BYTES = 64 << 20
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that no fault of a program's own gives it: somebody, or the kernel short of memory, has ended it."""
ASK_SECONDS = 10.0
"""How long the nursery may take to take a request."""
NURSERY_END_SECONDS = 1.0
"""How long after its children a nursery that has died may be seen to be dead."""
CLOSE_SECONDS = 2.0
"""How long the nursery may take to end all it has."""


class Nursery:
    """The parent's side. Make it before the process has threads; `call` is thread-safe."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        # By this a janitor knows what a child has started when all who should end it were killed.
        mark = f"prorl-child-{this_process()}"
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            os.environ[VARIABLE] = mark
            become_nursery(theirs, parent)
        theirs.close()
        ours.settimeout(ASK_SECONDS)
        self._pidfd = os.pidfd_open(self._pid)
        self._socket = ours
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Readable when the nursery has died."""
        return self._pidfd

    def call(self, function: Callable[[Any], Any], argument: Any, *, timeout: float, cancel: CancelSignal) -> Any:
        """Run `function(argument)` in a child and return its JSON.

        Raises: `HandlerError` for what the function raised or could not return, `ChildLost` when a signal from outside
        ended the child, `StageTimeout` after `timeout` seconds, what `cancel.raise_if_set` raises; `NodeExhausted` when
        no child can be made; `Stopping` when the nursery is gone, `LostWorker` when it went during the call. The child
        is dead when this returns or raises.
        """
        name = _importable_name(function)
        try:
            payload = json.dumps(argument).encode()
        except (TypeError, ValueError) as error:
            raise HandlerError(f"the argument of {name} is not JSON: {error}") from error
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise NodeExhausted(f"no child could be made for {name}: {error}") from error
        with ours:
            with theirs:
                self._ask(name, theirs)
            return self._converse(ours, name, payload, time.monotonic() + timeout, timeout, cancel)

    def close(self) -> None:
        """End the nursery, and with it every child and what those have started."""
        with contextlib.suppress(OSError):
            self._socket.close()  # which tells it
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            await_end(self._pid, CLOSE_SECONDS)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _ask(self, name: str, theirs: socket.socket) -> None:
        with self._lock:
            try:
                socket.send_fds(self._socket, [name.encode()], [theirs.fileno()])
            except (TimeoutError, BlockingIOError) as error:
                raise NodeExhausted(f"{name} could not be asked for within {ASK_SECONDS:g} s") from error
            except OSError as error:
                if not self._has_died(0.0):
                    raise NodeExhausted(f"{name} could not be asked for: {error}") from error
                raise Stopping("the process that forks children is gone, and this one with it") from error

    def _has_died(self, within: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(within * 1000))

    def _converse(
        self, stream: socket.socket, name: str, payload: bytes, deadline: float, timeout: float, cancel: CancelSignal
    ) -> Any:
        """Send the argument, take the reply; kill the child on every other way out."""
        stream.setblocking(False)
        pidfd = -1
        outgoing, incoming = memoryview(HEADER.pack(len(payload)) + payload), bytearray()
        poll = select.poll()
        poll.register(cancel.fileno(), select.POLLIN)
        try:
            while True:
                poll.register(stream, select.POLLIN | (select.POLLOUT if outgoing and pidfd >= 0 else 0))
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StageTimeout(f"{name} did not end within {timeout:g} s")
                events = dict(poll.poll(left * 1000))
                cancel.raise_if_set()
                flags = events.get(stream.fileno(), 0)
                if flags & select.POLLOUT:
                    with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                        outgoing = outgoing[stream.send(outgoing) :]
                if not flags & ~select.POLLOUT:
                    continue
                if pidfd < 0:
                    _, fds, _, _ = socket.recv_fds(stream, 1, 1)
                    if not fds:
                        raise self._no_child(name)
                    pidfd = fds[0]
                    continue
                part = stream.recv(1 << 16)
                incoming += part
                if len(incoming) > REPLY_LIMIT_BYTES:
                    raise HandlerError(f"{name} returned more than {REPLY_LIMIT_BYTES} bytes")
                if _complete(incoming):
                    return _reply(name, incoming)
                if not part:
                    raise self._no_answer(name, incoming)
        finally:
            if pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)

    def _no_child(self, name: str) -> Exception:
        if self._has_died(0.0):
            return Stopping("the process that forks children is gone, and this one with it")
        return NodeExhausted(f"no child could be made for {name}")

    def _no_answer(self, name: str, incoming: bytearray) -> Exception:
        """Why the stream has ended without one."""
        said, code = TRAILER.unpack(incoming[-TRAILER.size :]) if len(incoming) >= TRAILER.size else (b"", 0)
        if said != ENDED:
            # The nursery tells how a child has ended: that it did not is its own end, which kills its children.
            if self._has_died(NURSERY_END_SECONDS):
                return LostWorker(f"the process that forks children died while {name} ran")
            return HandlerError(f"the child that ran {name} died before it answered")
        if -code in FROM_OUTSIDE:
            return ChildLost(f"the child that ran {name} was killed ({signal.Signals(-code).name}) before it answered")
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return HandlerError(f"the child that ran {name} died before it answered ({how})")


def _importable_name(function: Callable[[Any], Any]) -> str:
    module, qualname = function.__module__, function.__qualname__
    if module == "__main__" or "<" in qualname:
        raise HandlerError(f"{module}:{qualname} cannot run in a child: it is not a module-level function")
    return f"{module}:{qualname}"


def _complete(incoming: bytearray) -> bool:
    return len(incoming) >= HEADER.size and len(incoming) >= HEADER.size + HEADER.unpack_from(incoming)[0]


def _reply(name: str, incoming: bytearray) -> Any:
    answer = json.loads(incoming[HEADER.size : HEADER.size + HEADER.unpack_from(incoming)[0]])
    if "error" in answer:
        raise HandlerError(f"{name}: {answer['error']}")
    return answer["value"]
