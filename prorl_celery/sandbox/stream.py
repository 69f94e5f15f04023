"""What a terminal said, in a piece of memory: the first half of it as it came, and in the rest the end, as a ring."""

from __future__ import annotations

from mmap import mmap


class Stream:
    """From `begin` of the memory to its end. How much was said so far is the caller's to remember."""

    def __init__(self, memory: mmap, begin: int) -> None:
        self._memory = memory
        self._begin = begin
        self._head = (len(memory) - begin) // 2
        self._ring = len(memory) - begin - self._head

    def add(self, said: int, data: bytes) -> None:
        """Take what was said after the first `said` bytes."""
        start = self._begin + said
        if said + len(data) <= self._head:
            self._memory[start : start + len(data)] = data
            return
        into_head = max(0, self._head - said)
        self._memory[start : start + into_head] = data[:into_head]
        place = said + into_head - self._head
        tail = data[into_head:]
        if len(tail) > self._ring:
            place += len(tail) - self._ring
            tail = tail[-self._ring :]
        place %= self._ring
        until_end = min(len(tail), self._ring - place)
        base = self._begin + self._head
        self._memory[base + place : base + place + until_end] = tail[:until_end]
        self._memory[base : base + len(tail) - until_end] = tail[until_end:]

    def kept(self, said: int, wanted: int) -> tuple[bytes, int, bytes]:
        """Of `said` bytes the first `wanted`: those from the start, how many are missing, and the rest."""
        first = self._memory[self._begin : self._begin + min(wanted, self._head)]
        if wanted <= self._head:
            return first, 0, b""
        base, behind = self._begin + self._head, said - self._head
        if behind <= self._ring:
            oldest, ring = self._head, self._memory[base : base + behind]
        else:
            oldest, split = said - self._ring, behind % self._ring
            ring = self._memory[base + split : base + self._ring] + self._memory[base : base + split]
        return first, min(oldest, wanted) - self._head, ring[: max(0, wanted - oldest)]
