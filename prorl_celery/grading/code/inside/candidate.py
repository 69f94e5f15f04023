"""The solution's process of `functions`, and the one that forks it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from .child import HIGHEST_OF_OURS, RECURSION, Limits, limit
from .plain import dump, load
from .wire import exactly

SAID_CHARS = 2000


class Nursery:
    """Forks the solution's processes, from one that was forked before any secret was read."""

    def __init__(self, work: str) -> None:
        self._mine, theirs = socket.socketpair()
        if os.fork() == 0:
            self._mine.close()
            try:
                _nurse(theirs, work)
            finally:
                os._exit(0)
        theirs.close()

    def take(self, source: bytes, limits: dict[str, Any]) -> None:
        """What is to be run. Raises `OSError`."""
        head = json.dumps(limits).encode()
        self._mine.sendall(b"%16d%16d" % (len(head), len(source)) + head + source)

    def start(self) -> tuple[int, int, int]:
        """A new process: its id, where to write calls, where to read answers. Raises `OSError`."""
        calls, call = os.pipe()
        answers, answer = os.pipe()
        socket.send_fds(self._mine, [b"!"], [calls, answer])
        os.close(calls)
        os.close(answer)
        pid = self._mine.recv(16)
        if not pid:
            raise BrokenPipeError("nobody forks any more")
        return int(pid), call, answers

    def end(self, pid: int) -> None:
        """Kill a process. What it has started is found at the end."""
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _nurse(line: socket.socket, work: str) -> None:
    with line.makefile("rb", buffering=0) as file:
        sizes = exactly(file, 32)  # type: ignore[arg-type]
        head = b"".join(_read(line, int(sizes[:16])))
        source = b"".join(_read(line, int(sizes[16:])))
    limits = Limits(**json.loads(head))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    folder = os.path.join(work, "case")
    os.makedirs(folder, exist_ok=True)
    while True:
        message, fds, _, _ = socket.recv_fds(line, 1, 2)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            try:
                _be_the_solution(fds, source, limits, folder)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)
        line.sendall(b"%16d" % pid)


def _read(line: socket.socket, size: int) -> list[bytes]:
    pieces = []
    while size:
        piece = line.recv(min(size, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return pieces


def _be_the_solution(fds: list[int], source: bytes, limits: Limits, folder: str) -> NoReturn:
    """Be the solution's process: load it when told, then answer calls until there are no more."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)
    for fd in range(3, HIGHEST_OF_OURS):
        if fd not in fds:
            with suppress(OSError):
                os.close(fd)
    os.environ.clear()
    os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", HOME=folder, TMPDIR=folder, LANG="C.UTF-8")
    os.chdir(folder)
    limit(limits)
    sys.setrecursionlimit(RECURSION)
    sys.argv = ["solution.py"]
    calls, answer = fds
    _answer(calls, answer, source)
    os._exit(0)


def _answer(calls: int, answer: int, source: bytes) -> None:
    requests = os.fdopen(calls, "rb")
    requests.readline()
    space: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), space)
        said = dump((None, None))
    except Exception:
        said = dump(("cannot be loaded", traceback.format_exc(limit=-3)[-SAID_CHARS:]))
    _write(answer, said)
    for line in requests:
        name, arguments, keywords = load(line)
        try:
            if name not in space:
                said = dump(("cannot be loaded", f"there is no {name}"))
            else:
                said = dump((None, space[name](*arguments, **keywords)))
        except Exception as error:
            said = dump((type(error).__name__, str(error)[:SAID_CHARS]))
        _write(answer, said)


def _write(answer: int, said: str) -> None:
    data = memoryview(said.encode() + b"\n")
    while data:
        data = data[os.write(answer, data) :]
