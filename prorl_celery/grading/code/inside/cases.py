"""The process that runs a solution's cases, one after another: it starts each, keeps its limits, ends all of it.

It is told what to run over a pipe and tells over another what came of it. It holds no secret, as each case is a fork
of it; a case that ends it is found out by the process at the other end of the pipes.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import select
import sys
import time
from contextlib import suppress
from functools import partial
from typing import BinaryIO, NamedTuple

from . import kernel
from .child import Limits, Program, become
from .languages import Starved, Unfit, prepare
from .places import Places
from .wire import receive, send

SAID_BYTES = 2000
LOOK_SECONDS = 0.25
"""Between two looks at what a case has used."""
END_SECONDS = 5.0
FORK_SECONDS = 5.0
READ_BYTES = 1 << 20
IDLE_SPARE_SECONDS = 1.0


class Ended(NamedTuple):
    """How the process of a case ended: a kind of its own, or an exit code (negative: a signal)."""

    kind: str
    code: int
    cpu: float
    wall: float
    spent: float
    """Seconds of `wall` without those in which a busy machine let it wait for a CPU."""
    memory: int
    said: bytes
    output: bytes
    clear: bool


def serve(requests: BinaryIO, replies: BinaryIO, work: str) -> None:
    """Prepare the program of the first message, then run the case of each that follows."""
    kernel.inherit_orphans()
    places = Places(work, os.environ.get("HOME", work))
    head, parts = receive(requests)
    limits = Limits(**head["limits"])
    try:
        program = prepare(head, parts[0], partial(run, places))
    except Unfit as unfit:
        send(replies, {"unfit": str(unfit)[-SAID_BYTES:]}, [])
        return
    except Starved as starved:
        send(replies, {"starved": str(starved)}, [])
        return
    _import_what_it_will(parts[0])
    send(replies, {}, [])
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        try:
            head, parts = receive(requests)
        except EOFError:
            return
        files = list(zip(head["files"], parts[1:]))
        ended = run(places, program, limits, parts[0], files, head["arguments"])
        send(replies, {**ended._asdict(), "said": "", "output": ""}, [ended.said, ended.output])


def run(
    places: Places,
    program: Program,
    limits: Limits,
    stdin: bytes,
    files: list[tuple[str, bytes]],
    arguments: list[str],
) -> Ended:
    """One case. Whatever it has started or written is gone afterwards, or `clear` is false."""
    folder = places.fresh(files)
    given = os.memfd_create("input")
    written = 0
    while written < len(stdin):
        written += os.write(given, memoryview(stdin)[written:])
    os.lseek(given, 0, os.SEEK_SET)
    output, out = os.pipe()
    errors, err = os.pipe()
    sys.stdout.flush()
    began = time.monotonic()
    pid = kernel.fork(FORK_SECONDS)
    if pid is None:
        for fd in (given, output, out, errors, err):
            os.close(fd)
        return Ended("starved", 0, 0.0, round(time.monotonic() - began, 4), 0.0, 0, b"", b"", places.clear())
    if pid == 0:
        try:
            become(program, limits, folder, arguments, (given, out, err))
        except BaseException as error:
            os.write(2, repr(error).encode()[:SAID_BYTES])
        finally:
            os._exit(126)
    for fd in (given, out, err):
        os.close(fd)
    watch = Watch(pid, limits, began, output, errors)
    kind = watch.to_the_end()
    used, waited = kernel.cpu_seconds(pid), kernel.waited_seconds(pid)
    if kind == "starved" and kernel.descendants(os.getpid()) != [pid]:
        kind = "crowded"
    with suppress(OSError):
        os.kill(pid, 9)
    _, status, usage = os.wait4(pid, 0)
    wall = time.monotonic() - began
    clear, more = kernel.end_all(END_SECONDS) if kernel.children(os.getpid()) else (True, 0.0)
    kind = watch.drain() or kind
    for fd in (output, errors):
        os.close(fd)
    cpu = max(usage.ru_utime + usage.ru_stime, used) + more
    memory = usage.ru_maxrss << 10
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    if kind == "" and cpu > limits.cpu_seconds:
        kind = "time limit"
    if kind == "" and memory > limits.memory_bytes:
        kind = "memory limit"
    clear = places.clear() and clear
    said = bytes(watch.said[-SAID_BYTES:])
    spent = max(cpu, wall - waited)
    return Ended(kind, code, round(cpu, 4), round(wall, 4), round(spent, 4), memory, said, bytes(watch.output), clear)


class Watch:
    """Reads what a process prints and looks at what it uses, until it ends or must be ended."""

    def __init__(self, pid: int, limits: Limits, began: float, output: int, errors: int) -> None:
        self._pid = pid
        self._limits = limits
        self._began = began
        self._fds = (output, errors)
        self._busy: dict[int, float] = {}
        self.output = bytearray()
        self.said = bytearray()

    def to_the_end(self) -> str:
        """Return when the process has ended, or the kind of limit that it has passed."""
        poll = select.poll()
        end = os.pidfd_open(self._pid)  # type: ignore[attr-defined,unused-ignore]
        try:
            for fd in (*self._fds, end):
                poll.register(fd, select.POLLIN)
            look = self._began + LOOK_SECONDS
            while True:
                events = poll.poll(max(0.0, look - time.monotonic()) * 1000)
                ready = {fd for fd, _ in events}
                for fd in ready - {end}:
                    if not self._read(fd):
                        poll.unregister(fd)
                if len(self.output) > self._limits.output_bytes:
                    return "output limit"
                if end in ready:
                    return ""
                if time.monotonic() >= look:
                    look = time.monotonic() + LOOK_SECONDS
                    kind = self._over()
                    if kind:
                        return kind
        finally:
            os.close(end)

    def drain(self) -> str:
        """Read what is left in the pipes, of which nobody holds the other end any more."""
        for fd in self._fds:
            os.set_blocking(fd, False)
            with suppress(BlockingIOError):
                while self._read(fd):
                    if len(self.output) > self._limits.output_bytes:
                        return "output limit"
        return ""

    def _read(self, fd: int) -> bool:
        data = os.read(fd, READ_BYTES)
        if fd == self._fds[0]:
            self.output += data
        else:
            self.said += data
            del self.said[: -2 * SAID_BYTES]
        return bool(data)

    def _over(self) -> str:
        """The limit that the case has passed, if it has: of CPU, with all that it started, which is below this process
        whatever it has left; of time in which none of these, the ended ones too, wanted a CPU; or of the time that a
        machine may take to give it its CPU at all.
        """
        wall = time.monotonic() - self._began
        processes = kernel.descendants(os.getpid())
        cpu = sum(map(kernel.cpu_seconds, processes))
        self._busy.update((pid, kernel.busy_seconds(pid)) for pid in processes)
        if cpu > self._limits.cpu_seconds:
            return "time limit"
        if wall - max(cpu, sum(self._busy.values())) > self._limits.cpu_seconds + IDLE_SPARE_SECONDS:
            return "idle"
        return "starved" if wall > self._limits.wall_seconds else ""


def _import_what_it_will(source: bytes) -> None:
    """Import the modules of the standard library that are named in a source, for its cases to find them there."""
    names = {word.decode() for word in re.findall(rb"[a-z]\w+", source)}
    for name in names & COMMON:
        importlib.import_module(name)


COMMON = frozenset(
    (
        *("array", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"),
        *("functools", "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "statistics"),
        *("string", "threading", "time", "typing"),
    )
)
"""Modules that are imported ahead: each would cost every case some milliseconds."""
