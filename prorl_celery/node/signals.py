"""Signals as something to poll: a pipe that the interpreter writes each signal's number into.

with SignalPipe(signal.SIGTERM, signal.SIGCHLD) as signals:
    for signum in signals.wait(timeout=5.0):
        ...
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from types import FrameType, TracebackType

_Handler = Callable[[int, FrameType | None], object] | int | None


class SignalPipe:
    """While entered, the given signals arrive here and nowhere else. For the main thread."""

    def __init__(self, *signals: signal.Signals) -> None:
        self._signals = signals
        self._before: dict[signal.Signals, _Handler] = {}
        self.descriptors: tuple[int, ...] = ()

    def __enter__(self) -> SignalPipe:
        self._read, self._write = self.descriptors = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for signum in self._signals:
            self._before[signum] = signal.signal(signum, _note)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._read)
        os.close(self._write)

    def watch(self, descriptor: int) -> None:
        """Have `wait` return as well when this one is readable."""
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout: float) -> list[signal.Signals]:
        """The signals that have come, waiting at most `timeout` seconds for the first."""
        ready = self._poll.poll(max(0.0, timeout) * 1000.0 + 1.0 if timeout > 0 else 0)
        if self._read not in dict(ready):
            return []
        return [signal.Signals(number) for number in os.read(self._read, 4096)]


def _note(signum: int, frame: FrameType | None) -> None:
    """The interpreter has written the number into the pipe; a handler must exist for that."""
