"""Processes that hold a sandbox and are killed in the midst of it: at a step, or at a moment."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

from prorl_celery.sandbox import control, terminal
from prorl_celery.sandbox.base import SandboxHandle
from prorl_celery.sandbox.page import Page
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing.keeper import KeeperProcess

Work = Callable[[LiveSandbox], object]
SECONDS = 60.0
"""For what takes milliseconds, on a machine with other things to do."""


class Steps:
    """Kills or stops its process at its `last` step: the beginning or the end of an act, or a call within one."""

    def __init__(self, last: int, number: int = signal.SIGKILL) -> None:
        self.taken = 0
        self._last = last
        self._number = number

    def step(self) -> None:
        self.taken += 1
        if self.taken == self._last:
            os.kill(os.getpid(), self._number)

    def count(self) -> None:
        """Count the steps of this process, which is to have no other use from now on."""
        for name in ("begin", "end"):
            setattr(Page, name, self._around(getattr(Page, name)))
        for module in (terminal, control):
            calls = {name: getattr(os, name) for name in ("read", "write", "open", "close", "tcgetpgrp")}
            flags = {name: getattr(os, name) for name in dir(os) if name.startswith("O_")}
            for name in ("read", "write"):
                calls[name] = self._behind(calls[name])
            module.os = SimpleNamespace(**calls, **flags, strerror=os.strerror)

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any) -> Any:
            self.step()
            return call(*arguments)

        return stepped

    def _behind(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any) -> Any:
            result = call(*arguments)
            self.step()
            return result

        return stepped


class Holder:
    """A child that attaches to a sandbox, says so, does its work and ends; `steps` are counted from the attach on."""

    def __init__(
        self, keeper: KeeperProcess, handle: SandboxHandle, work: Work, *, fence: int, steps: Steps | None = None
    ) -> None:
        self._ready, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _hold(keeper, handle, work, fence, steps, theirs)
        os.close(theirs)
        self._pidfd = os.pidfd_open(self.pid)

    def await_ready(self) -> None:
        """Return when it has the sandbox and is about to work."""
        assert os.read(self._ready, 1) == b"r", "it did not come to work"

    def await_end(self) -> int | None:
        """Its exit code; None when it was killed."""
        assert select.select([self._pidfd], [], [], SECONDS)[0], "it does not end"
        _, status = os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        os.close(self._ready)
        self.pid = 0
        return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)

    def await_stop_or_end(self) -> bool:
        """Whether it has been stopped; it is reaped if it has ended instead."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        return os.WIFSTOPPED(status)

    def kill(self) -> None:
        """SIGKILL, and wait until it has gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.await_end()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _hold(
    keeper: KeeperProcess, handle: SandboxHandle, work: Work, fence: int, steps: Steps | None, ready: int
) -> NoReturn:
    """The child's whole life."""
    code = 99
    try:
        never = NeverCancelled()
        sandbox = keeper.client.attach(handle, cancel=never, fence=fence)
        if steps is not None:
            steps.count()
        os.write(ready, b"r")
        result = work(sandbox)
        code = result if isinstance(result, int) else 0
    finally:
        os._exit(code)


class Succession:
    """One sandbox and those who hold it, one after the other, each under a fence of its own."""

    def __init__(self, keeper: KeeperProcess, handle: SandboxHandle) -> None:
        self._keeper = keeper
        self._handle = handle
        self.fence = 1

    def holder(self, work: Work, steps: Steps | None = None) -> Holder:
        """The next is a process."""
        self.fence += 1
        return Holder(self._keeper, self._handle, work, fence=self.fence, steps=steps)

    @contextmanager
    def taken_over(self) -> Iterator[LiveSandbox]:
        """The next is this process."""
        self.fence += 1
        with (
            NeverCancelled() as never,
            closing(
                self._keeper.client.attach(self._handle, cancel=never, fence=self.fence, takes_over=True)
            ) as sandbox,
        ):
            yield sandbox


def after(seconds: float) -> None:
    """Wait for a time too short for the scheduler's."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        continue
