"""The nursery's own side: the process that forks a child per call, and the child.

It has one thread and stays warm: nothing is imported in it but what it was forked with, and what the module of a
function names in `WARM`, once, before the first child that runs one: a grader's parser may take seconds to import. What
a child leaves behind it ends, and of one that ended without an answer it tells the caller how.
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
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

_LIBC = ctypes.CDLL(None, use_errno=True)

HEADER = struct.Struct("!Q")
"""In front of an argument and of an answer: how many bytes it has."""
TRAILER = struct.Struct("!6si")
"""What the nursery sends behind what a child has sent: `ENDED`, and the child's exit code, or minus its signal."""
ENDED = b"\xffended"
ORPHANS_SECONDS = 1.0
"""How long what a child left may take to be gone. One that the kernel holds is the supervisor's in the end."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class _Child(NamedTuple):
    pid: int
    stream: socket.socket


def become_nursery(requests: socket.socket, parent: int) -> None:
    """The nursery's whole life: fork one child per request until the other side is closed. Never returns."""
    children: dict[int, _Child] = {}  # by pidfd
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
                        for pidfd, child in children.items():
                            _bury(pidfd, child, children.values())
                        return
                    _warm(name.decode())
                    # No process or descriptor is left: this caller sees its stream end, the next may fare better.
                    with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
                        stream = undo.enter_context(contextlib.closing(_stream(fds)))
                        pid, pidfd = _bear(requests, stream, name.decode())
                        children[pidfd] = _Child(pid, stream)
                        poll.register(pidfd, select.POLLIN)
                        undo.pop_all()
                else:
                    poll.unregister(fd)
                    _bury(fd, children.pop(fd), children.values())
    finally:
        os._exit(0)


def _warm(name: str) -> None:
    """Import what the function's module says its functions import. What cannot be imported a child tells its caller."""
    module = sys.modules.get(name.partition(":")[0])
    for wanted in getattr(module, "WARM", ()):
        if wanted not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(wanted)


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


def _bury(pidfd: int, child: _Child, others: Iterable[_Child]) -> None:
    """End a child with all that it has started, and reap it: until then its number is nobody else's. Tell its caller
    how it has ended.
    """
    pid = child.pid
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    with contextlib.suppress(OSError), child.stream as stream:  # one that has its answer has gone
        stream.send(TRAILER.pack(ENDED, os.waitstatus_to_exitcode(status)), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    siblings = {other.pid for other in others}
    # What had a session of its own is a child of this process now: while its own forebear lives it is that one's.
    deadline = time.monotonic() + ORPHANS_SECONDS
    while (orphans := [orphan for orphan in _children() if orphan not in siblings]) and time.monotonic() < deadline:
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
            await_end(orphan, deadline - time.monotonic())
            os.waitpid(orphan, os.WNOHANG)


def _children() -> list[int]:
    me = os.getpid()
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text(encoding="ascii").split()]
    return []


def await_end(pid: int, seconds: float) -> None:
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
