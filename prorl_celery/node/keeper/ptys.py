"""ptyprocess as a process that must never wait can use it: without its sleeps, and without what it leaves behind.

When a fork fails, `PtyProcess.spawn` leaves the pipe open through which its child would have told of a failed exec, and
`pty.fork`, which tries a second way, a pseudo-terminal: four descriptors, each time. When exec fails, it leaves the
child to a finaliser that sleeps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from ptyprocess import PtyProcess

LEFT_OPEN = 4


class _Pty(PtyProcess):  # type: ignore[misc]  # it has no types
    forked: ClassVar[list[_Pty]] = []
    """The one being spawned, once its fork has succeeded."""

    def __init__(self, pid: int, fd: int) -> None:
        super().__init__(pid, fd)
        self.delayafterclose = self.delayafterterminate = 0
        _Pty.forked.append(self)


def spawn(argv: Sequence[str], **options: Any) -> Any:
    """As `PtyProcess.spawn`, for a process of one thread. Whatever it raises, nothing is left behind."""
    numbers = _next_numbers(LEFT_OPEN)
    try:
        return _Pty.spawn(list(argv), **options)
    except OSError:
        for child in _Pty.forked:
            # Its exec failed: it has said so, and ends.
            os.waitpid(child.pid, 0)
            child.terminated = True
            child.close()
        for number in () if _Pty.forked else numbers:
            with suppress(OSError):
                os.close(number)
        raise
    finally:
        _Pty.forked.clear()


def _next_numbers(count: int) -> list[int]:
    """The numbers that the next descriptors to be opened will have: the lowest that are free."""
    numbers: list[int] = []
    try:
        for _ in range(count):
            numbers.append(os.dup(numbers[0]) if numbers else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        # There are no more: what spawn opens before it fails is among these.
        pass
    for number in numbers:
        os.close(number)
    return numbers
