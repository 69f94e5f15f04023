"""What a command printed, kept within a cap: the first bytes and the last.

Memory stays at the cap plus one read, whatever the command prints.
"""

from __future__ import annotations


class CappedOutput:
    """Collects bytes; keeps `limit_bytes` of them, half from the start and half from the end."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes | memoryview) -> None:
        """Take more output."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_limit:
            self._dropped += len(self._tail) + len(data) - self._tail_limit
            self._tail[:] = data[len(data) - self._tail_limit :]
        elif data:
            self._tail += data
            over = len(self._tail) - self._tail_limit
            if over > 0:
                del self._tail[:over]
                self._dropped += over

    def skip(self, count: int) -> None:
        """Count bytes that somebody else left out here, where they would not have been kept."""
        self._dropped += count

    @property
    def omitted_bytes(self) -> int:
        """How many bytes between head and tail were not kept."""
        return self._dropped

    def text(self) -> str:
        """Head and tail as text; where bytes are missing, a line between them says how many."""
        if not self._dropped:
            return normalise(bytes(self._head + self._tail))
        gap = f"\n[... {self._dropped} bytes left out ...]\n"
        return normalise(bytes(self._head)) + gap + normalise(bytes(self._tail))


def normalise(data: bytes) -> str:
    """Terminal output as text: line ends as \\n, broken UTF-8 as U+FFFD, no NUL."""
    return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}")
