"""What a command printed, as a model should read it: each line in its last state, and no more than a cap of it.

A program that draws a progress bar returns to the start of the line (`\\r`) and writes it anew, a thousand times. Shown
is what a terminal shows in the end: the text after the last return. (Where a shorter text was written over a longer one
a terminal shows the rest of that; here all of it goes.) A return right before a line's end is part of it.

Of more than the cap the first bytes and the last are kept. Memory stays at the cap plus two reads, whatever the command
prints. Reads are kept as they came until they are made text, so that few bytes are ever copied.
"""

from __future__ import annotations

import re
from collections import deque

SMALL_BYTES = 1024
"""Reads shorter than this are put together: an object for each would cost more than its bytes."""
BLOCK_BYTES = 4096
ERASE_LINE = (b"\x1b[K", b"\x1b[0K", b"\x1b[2K")
"""Terminal codes that clear the line or the rest of it; they go with the text that they clear."""
UNCLEAR = re.compile(rb"\r(?:\x1b(?:\[[02]?)?)?\Z")


class CappedOutput:
    """Collects bytes; keeps `limit_bytes` of them, half from the start and half from the end."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail: deque[bytes | bytearray] = deque()
        self._tail_bytes = 0
        self._dropped = 0
        self._held = b""
        """A return at the very end: what comes next says what it meant."""
        self.moved_bytes = 0
        """Bytes copied so far from one object to another, the making of the text included."""

    def add(self, data: bytes) -> None:
        """Take more output."""
        if self._held or b"\r" in data:
            data = self._rewritten(data)
        room = self._head_limit - len(self._head)
        if room > 0:  # then nothing stands behind the head yet
            self._head += data[:room]
            self.moved_bytes += min(room, len(data))
            data = data[room:]
        if data:
            self._add_to_tail(data)

    def skip(self, count: int) -> None:
        """Count bytes that somebody else left out here, where they would not have been kept."""
        self._head_limit = len(self._head)
        self._dropped += count

    def cut_last_line(self, mark: bytes) -> None:
        """Take back the last line, if `mark` is in it."""
        end = b"".join(self._tail) or bytes(self._head)
        start = end.rfind(b"\n", 0, max(0, len(end) - 1)) + 1
        if mark not in end[start:]:
            return
        if self._tail:
            self._tail = deque([end[:start]])
            self._tail_bytes = start
        else:
            del self._head[start:]

    @property
    def omitted_bytes(self) -> int:
        """How many bytes between head and tail were not kept. Text that was written over is not counted."""
        return self._dropped + max(0, self._tail_bytes - self._tail_limit)

    def text(self) -> str:
        """Head and tail as text; where bytes are missing, a line between them says how many."""
        if not self._tail and not self._dropped:
            self.moved_bytes += len(self._head)
            return as_text(bytes(self._head)) if self._head else ""
        omitted = self.omitted_bytes
        tail = b"".join(self._tail)[max(0, self._tail_bytes - self._tail_limit) :]
        self.moved_bytes += self._tail_bytes + len(tail) + len(self._head)
        if not omitted:
            return as_text(bytes(self._head) + tail)
        return f"{as_text(bytes(self._head))}\n[... {omitted} bytes left out ...]\n{as_text(tail)}"

    def _add_to_tail(self, data: bytes) -> None:
        tail = self._tail
        if len(data) >= SMALL_BYTES:
            tail.append(data)
        else:
            self.moved_bytes += len(data)
            last = tail[-1] if tail else None
            if isinstance(last, bytearray) and len(last) < BLOCK_BYTES:
                last += data
            else:
                tail.append(bytearray(data))
        self._tail_bytes += len(data)
        while tail and self._tail_bytes - len(tail[0]) >= self._tail_limit:
            gone = len(tail.popleft())
            self._tail_bytes -= gone
            self._dropped += gone

    def _rewritten(self, data: bytes) -> bytes:
        """What is left of more output when its returns have been followed; the line it goes on with may go."""
        self.moved_bytes += 2 * len(data)
        data = self._held + data
        unclear = UNCLEAR.search(data)
        self._held = unclear.group() if unclear else b""
        data = data[: len(data) - len(self._held)].rstrip(b"\r") if self._held else data
        while b"\r\r" in data:
            data = data.replace(b"\r\r", b"\r")
        data = data.replace(b"\r\n", b"\n")
        if b"\r" not in data:
            return data
        lines = data.split(b"\n")
        if b"\r" in lines[0]:
            self._erase_line()
        for index, line in enumerate(lines):
            if b"\r" in line:
                line = line.rpartition(b"\r")[2]
                for code in ERASE_LINE:
                    line = line.replace(code, b"")
                lines[index] = line
        return b"\n".join(lines)

    def _erase_line(self) -> None:
        """Take back what was kept of the line that has not ended."""
        while self._tail:
            last = self._tail.pop()
            self._tail_bytes -= len(last)
            start = last.rfind(b"\n") + 1
            if start:
                self._tail.append(last[:start])
                self._tail_bytes += start
                return
        if not self._dropped:
            del self._head[self._head.rfind(b"\n") + 1 :]


def as_text(data: bytes) -> str:
    """Bytes of a terminal as text: broken UTF-8 and NUL as U+FFFD."""
    return data.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
