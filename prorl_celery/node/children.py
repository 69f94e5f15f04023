"""One child process of a supervisor: how it is started, told to stop, and killed.

A child is a `Call` (a Python function in a fork of the warm, single-threaded supervisor, so that imported
modules are shared copy-on-write) or a `Command` (a program). Either has a process group of its own, and a
signal that the kernel sends it when the supervisor dies, however it dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from prorl_celery.errors import InternalError
from prorl_celery.node import prctl

LOG_BYTES = 32 << 20
"""A child's log that is larger is set aside as `.1` when the child starts; one older log is kept."""

OWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1)
"""The supervisor's signals, which a child must not inherit as they are."""
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by Python, for which a closed socket is an exception; other programs expect them."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function to run in a forked child; what it returns is the exit code (None is 0)."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A program to execute. With `holds_stdin`, its stdin is a pipe that ends when the supervisor does."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    holds_stdin: bool = False


Start = Call | Command


@dataclass(slots=True)
class Child:
    """A running child. Signals to it never raise for a child that has just ended."""

    name: str
    pid: int
    started_at: float
    stdin: int | None = None
    told: bool = field(default=False)
    kill_at: float | None = field(default=None)
    killed: bool = field(default=False)
    beaten_at: float | None = field(default=None)
    """When it last said that it is at work; None for one that never did."""
    retired: bool = field(default=False)
    """It finishes beside its successor."""
    outdated: bool = field(default=False)
    """It runs the code of before a rolling restart, and waits to be replaced."""

    def tell(self, signum: signal.Signals, *, kill_at: float) -> None:
        """Ask it to stop (stdin closed, then `signum`); it is due to be killed at `kill_at` (monotonic)."""
        self.close_stdin()
        self.told, self.kill_at = True, kill_at
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill it and its process group."""
        self.killed = True
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, signal.SIGKILL)

    def close_stdin(self) -> None:
        """Close our end of its stdin, where it has one."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None


def launch(
    start: Start,
    *,
    name: str,
    death_signal: signal.Signals = signal.SIGKILL,
    log: Path | None = None,
    close: Iterable[int] = (),
) -> Child:
    """Start a child. `log` takes its output (else it has ours); `close` are our descriptors a fork must not
    keep.

    Raises `InternalError` from a process with threads (a fork of it may deadlock), `OSError` when no process
    can be made. A program that cannot be executed is a child that ends with exit code 1 and says why in its
    output.
    """
    if (threads := len(list(Path("/proc/self/task").iterdir()))) != 1:
        raise InternalError(f"cannot fork {name}: this process has {threads} threads")
    parent = os.getpid()
    stdin_read, stdin_write = (
        os.pipe() if isinstance(start, Command) and start.holds_stdin else (os.open(os.devnull, os.O_RDONLY), None)
    )
    with contextlib.ExitStack() as undo:
        for descriptor in (stdin_read, stdin_write):
            if descriptor is not None:
                undo.callback(os.close, descriptor)
        output = _open_log(log) if log is not None else None
        if output is not None:
            undo.callback(os.close, output)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = _fork_unsignalled()
        undo.pop_all()
    if pid == 0:
        with _EndOfProcess():
            os.setpgid(0, 0)
            prctl.die_with_parent(parent, death_signal)
            _take_own_signals((*OWN_SIGNALS, *_PYTHONS) if isinstance(start, Command) else OWN_SIGNALS)
            os.dup2(stdin_read, 0)
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            for descriptor in (stdin_read, stdin_write, output, *close):
                if descriptor is not None:
                    os.close(descriptor)
            if isinstance(start, Command):
                os.execve(start.argv[0], start.argv, os.environ if start.env is None else start.env)
            prctl.name_process(f"prorl-{name}")
            prctl.share_malloc_arenas()
            raise SystemExit(start.function(*start.arguments))
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)  # in both, so that the group exists whoever runs first
    os.close(stdin_read)
    if output is not None:
        os.close(output)
    return Child(name, pid, time.monotonic(), stdin_write)


def _fork_unsignalled() -> int:
    """Fork; the child has our signals blocked, until it takes its own.

    One that met it before that would be written into our signal pipe, as if it had been meant for us.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OWN_SIGNALS)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _take_own_signals(signals: Iterable[signal.Signals]) -> None:
    signal.set_wakeup_fd(-1)
    for signum in signals:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _open_log(log: Path) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class _EndOfProcess:
    """Whatever happens within, the process ends here: a fork must never return into the supervisor's
    stack.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(kind, error, trace)
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)
