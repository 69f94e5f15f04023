"""Killable child processes for code that may block in C or burn CPU: graders, users' own functions.

    stage process (threads) --SEQPACKET--> nursery (one thread, warm) --fork--> child
                    '----------- a stream socket of its own per call -----------'

The nursery is forked before the stage process has threads, so that its forks are safe and cost a millisecond: no
interpreter is started. A call passes `module:function` and JSON, and gets JSON back. The caller holds a pidfd of the
child, so that a kill never meets another process that got the same pid.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from prorl_celery.errors import HandlerError, InternalError, StageTimeout
from prorl_celery.sandbox.base import CancelSignal
from prorl_celery.sandbox.owner import VARIABLE, this_process

_LIBC = ctypes.CDLL(None, use_errno=True)

REPLY_LIMIT_BYTES = 64 << 20
HEADER = struct.Struct("!Q")
ORPHANS_SECONDS = 1.0
"""How long what a child left may take to be gone. One that the kernel holds is the supervisor's in the end."""
CLOSE_SECONDS = 2.0
"""How long the nursery may take to end all it has."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


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
            _become_nursery(theirs, parent)
        theirs.close()
        self._socket = ours
        self._lock = threading.Lock()

    def call(self, function: Callable[[Any], Any], argument: Any, *, timeout: float, cancel: CancelSignal) -> Any:
        """Run `function(argument)` in a child and return its JSON.

        Raises: `HandlerError` for what the function raised or could not return, `StageTimeout` after `timeout`
        seconds, what `cancel.raise_if_set` raises. The child is dead when this returns or raises.
        """
        name = _importable_name(function)
        try:
            payload = json.dumps(argument).encode()
        except (TypeError, ValueError) as error:
            raise HandlerError(f"the argument of {name} is not JSON: {error}") from error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            with theirs:
                self._ask(name, theirs)
            return _converse(ours, name, payload, time.monotonic() + timeout, timeout, cancel)

    def close(self) -> None:
        """End the nursery, and with it every child and what those have started."""
        with contextlib.suppress(OSError):
            self._socket.close()  # which tells it
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            _await_end(self._pid, CLOSE_SECONDS)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _ask(self, name: str, theirs: socket.socket) -> None:
        with self._lock:
            try:
                socket.send_fds(self._socket, [name.encode()], [theirs.fileno()])
            except OSError as error:
                raise InternalError(f"the process that forks children is gone: {error}") from error


def _importable_name(function: Callable[[Any], Any]) -> str:
    module, qualname = function.__module__, function.__qualname__
    if module == "__main__" or "<" in qualname:
        raise HandlerError(f"{module}:{qualname} cannot run in a child: it is not a module-level function")
    return f"{module}:{qualname}"


def _converse(
    stream: socket.socket, name: str, payload: bytes, deadline: float, timeout: float, cancel: CancelSignal
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
            if flags & ~select.POLLOUT:
                if pidfd < 0:
                    _, fds, _, _ = socket.recv_fds(stream, 1, 1)
                    if not fds:
                        raise InternalError(f"no child could be made for {name}")
                    pidfd = fds[0]
                    continue
                part = stream.recv(1 << 16)
                incoming += part
                if len(incoming) > REPLY_LIMIT_BYTES:
                    raise HandlerError(f"{name} returned more than {REPLY_LIMIT_BYTES} bytes")
                if not part:
                    return _reply(name, incoming)
    finally:
        if pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def _reply(name: str, incoming: bytearray) -> Any:
    if len(incoming) < HEADER.size or len(incoming) != HEADER.size + HEADER.unpack_from(incoming)[0]:
        raise HandlerError(f"the child that ran {name} died before it answered")
    answer = json.loads(incoming[HEADER.size :])
    if "error" in answer:
        raise HandlerError(f"{name}: {answer['error']}")
    return answer["value"]


def _become_nursery(requests: socket.socket, parent: int) -> None:
    """The nursery's whole life: fork one child per request until the other side is closed. Never returns."""
    children: dict[int, int] = {}  # pidfd -> pid
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        poll = select.poll()
        poll.register(requests, select.POLLIN)
        while os.getppid() == parent:
            for fd, _ in poll.poll(60_000):
                if fd == requests.fileno():
                    name, fds, _, _ = socket.recv_fds(requests, 4096, 1)
                    if not name:
                        for pidfd, pid in children.items():
                            _bury(pidfd, pid, children.values())
                        return
                    # No process or descriptor is left: this caller sees its stream end, the next may fare better.
                    with contextlib.suppress(OSError), contextlib.closing(_stream(fds)) as stream:
                        pid, pidfd = _bear(requests, stream, name.decode())
                        children[pidfd] = pid
                        poll.register(pidfd, select.POLLIN)
                else:
                    poll.unregister(fd)
                    _bury(fd, children.pop(fd), children.values())
    finally:
        os._exit(0)


def _stream(fds: list[int]) -> socket.socket:
    if not fds:
        raise OSError(errno.EMFILE, "the caller's stream could not be taken")
    return socket.socket(fileno=fds[0])


def _bear(requests: socket.socket, stream: socket.socket, name: str) -> tuple[int, int]:
    """Fork a child that waits until its pidfd has been passed on; return its pid and our own pidfd."""
    ready, go = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            requests.close()
            os.close(go)
            os.read(ready, 1)
            _become_child(stream, name)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        with contextlib.suppress(OSError):  # the caller has gone: the child notices when it reads its argument
            stream.sendmsg([b"p"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd]))])
    finally:
        os.close(ready)
        os.close(go)
    return pid, pidfd


def _bury(pidfd: int, pid: int, others: Container[int]) -> None:
    """End a child with all that it has started, and reap it: until then its number is nobody else's."""
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(pidfd)
    # What had a session of its own is a child of this process now: while its own forebear lives it is that one's.
    deadline = time.monotonic() + ORPHANS_SECONDS
    while (orphans := [orphan for orphan in _children() if orphan not in others]) and time.monotonic() < deadline:
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
            _await_end(orphan, deadline - time.monotonic())
            os.waitpid(orphan, os.WNOHANG)


def _children() -> list[int]:
    me = os.getpid()
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text(encoding="ascii").split()]
    return []


def _await_end(pid: int, seconds: float) -> None:
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(max(0.0, seconds) * 1000)
    os.close(pidfd)


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, value, 0, 0, 0)


def _become_child(stream: socket.socket, name: str) -> None:
    """Run the function and answer. Never returns."""
    status = 1
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        with stream.makefile("rb") as file:
            argument = json.loads(file.read(HEADER.unpack(file.read(HEADER.size))[0]))
        try:
            module, _, qualname = name.partition(":")
            function: Any = sys.modules.get(module) or importlib.import_module(module)
            for part in qualname.split("."):
                function = getattr(function, part)
            answer = json.dumps({"value": function(argument)})
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is the caller's answer
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        stream.sendall(HEADER.pack(len(answer.encode())) + answer.encode())
        stream.shutdown(socket.SHUT_RDWR)
        status = 0
    finally:
        os._exit(status)
