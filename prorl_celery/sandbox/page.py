"""Memory that all holders of one sandbox share: whose it is, and what its holder is about to do or has just done.

The keeper makes it with the sandbox. A holder writes down each step as it takes it, so that whoever takes over after a
kill -9 knows where things stand (`prorl_celery.sandbox.notes`); and it looks at the fence before every read and write
of the sandbox's descriptors, so that one who was stopped and wakes takes nothing from its successor.

    0        the fence of its present holder; the keeper writes it
    8        of each of the last HOLDERS holders: its pid, its start time, and the act that it is in the midst of
    200      what a holder was in the midst of when it died, until its successor has dealt with that
    ...      what is noted of the shell, the files and the kernel
    NOTES    what the terminal said since the last command was sent: the first half of it, and a ring of its end

An act is a read or a write, and what is noted of it; it blocks nowhere. So a holder that stands in the midst of one is
dead, or has been stopped there.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from typing import NoReturn

from prorl_celery.errors import FenceLost, SandboxError
from prorl_celery.sandbox.owner import start_time

NOTES_BYTES = 16 << 10
"""Where the terminal's part begins."""
STREAM_BYTES = 32 << 10
"""What that is longer than the output that is kept of a command: reads that come out of step, and markers."""
HOLDERS = 8
READ, WRITE, CONTROL, KERNEL, NOTE = 1, 2, 4, 8, 16
"""Acts: a read of the terminal, a write to it, something with the control channel, or with the kernel's sockets; and
nothing but a note."""
PATIENCE_SECONDS = 2.0
"""How long a holder that lives may be in the midst of an act, before it is taken to be stopped there."""
LOOK_SECONDS = 0.001

_FENCE, _SLOTS, _DOUBTS = 0, 1, 25
_WORD = struct.Struct("=Q")


def make_page(*, fence: int, output_bytes: int) -> int:
    """A page for a new sandbox, whose shell keeps so much of a command's output; its descriptor. Raises `OSError`."""
    descriptor = os.memfd_create("prorl-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, NOTES_BYTES + STREAM_BYTES + output_bytes)
        # Nobody who has it can make it shorter under another's feet.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        write_fence(descriptor, fence)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_fence(descriptor: int) -> int:
    """The fence of the present holder."""
    fence: int = _WORD.unpack(os.pread(descriptor, _WORD.size, 0))[0]
    return fence


def write_fence(descriptor: int, fence: int) -> None:
    """Give the sandbox to the holder of this fence."""
    os.pwrite(descriptor, _WORD.pack(fence), 0)


class Page:
    """A holder's view of it. `begin` and `end` stand around every act."""

    def __init__(self, descriptor: int, *, slot: int = 0) -> None:
        """`slot` is this holder's place among the last ones. The descriptor stays the caller's. Raises `OSError`."""
        self.memory = mmap.mmap(descriptor, 0)
        self.words = memoryview(self.memory).cast("Q")
        self.numbers = memoryview(self.memory).cast("d")
        self._place = _SLOTS + 3 * (slot % HOLDERS)
        self._act = self._place + 2
        self._fence = self.words[_FENCE]
        self._closed = False

    def hold(self) -> None:
        """Become a holder, when those before are out of their acts. Raises `SandboxError` when one lives and is not."""
        for place in range(_SLOTS, _SLOTS + 3 * HOLDERS, 3):
            if place != self._place:
                self._await(place)
        self._inherit(self._place)
        self.words[self._place] = os.getpid()
        self.words[self._place + 1] = start_time(os.getpid()) or 0

    def begin(self, act: int) -> None:
        """Begin an act. Raises: `FenceLost` when the sandbox is another's, `SandboxError` when it was closed here."""
        self.words[self._act] = act
        if self.words[_FENCE] != self._fence:
            self._refuse()

    def end(self) -> None:
        """The act has been done, and noted."""
        self.words[self._act] = 0

    def check(self) -> None:
        """Raises as `begin`."""
        self.begin(NOTE)
        self.end()

    def __enter__(self) -> None:
        """An act that only notes something."""
        self.begin(NOTE)

    def __exit__(self, *_: object) -> None:
        self.end()

    def doubts(self, acts: int) -> int:
        """Which of these acts a holder was in the midst of when it died."""
        return self.words[_DOUBTS] & acts

    def settle(self, acts: int) -> None:
        """What had been doubtful about these is known now."""
        self.words[_DOUBTS] &= ~acts

    def close(self) -> None:
        """Let go of the memory. Every act is refused from now on."""
        if not self._closed:
            self._closed = True
            self._fence = -1
            for view in (self.words, self.numbers):
                view.release()
            self.memory.close()
            self.words = memoryview(bytearray(NOTES_BYTES)).cast("Q")
            self.numbers = memoryview(bytearray(NOTES_BYTES)).cast("d")

    def _refuse(self) -> NoReturn:
        self.words[self._act] = 0
        if self._closed:
            raise SandboxError("the sandbox was closed by this process")
        raise FenceLost("a later claim holds the sandbox")

    def _await(self, place: int) -> None:
        """Wait until a holder before us is out of its act, or has died in it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.words[place + 2]:
            if start_time(self.words[place]) != self.words[place + 1]:
                self._inherit(place)
            elif time.monotonic() > deadline:
                raise SandboxError("the sandbox cannot be taken over: its last holder has been stopped amid a step")
            else:
                time.sleep(LOOK_SECONDS)  # what it is in the midst of takes microseconds, and nothing tells of its end

    def _inherit(self, place: int) -> None:
        # In this order: whoever dies here leaves both, and to doubt twice is no harm.
        self.words[_DOUBTS] |= self.words[place + 2]
        self.words[place + 2] = 0
