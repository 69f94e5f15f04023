"""ZeroMQ's protocol (ZMTP 3.0, without security) over a Unix socket, as far as a worker needs it to speak to a kernel.

The library bounds how long a frame of a message is, but not how many there are, and takes them in before anybody asks:
what runs in a kernel could fill the worker's memory, and end all jobs in it. Here a message is bounded as a whole, and
nothing is read before somebody asks for it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

DEALER, SUB = b"DEALER", b"SUB"
SUBSCRIBE_TO_ALL = b"\x01"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4
"""Flags of a frame."""
READ_BYTES = 64 << 10
READS = 16
"""Reads for one look: whoever waits has a deadline, and what comes may never end."""
FRAME_BYTES = 64
"""What a frame counts beside its length: an object of ours."""
MOST_UNSENT = 1 << 20
"""With more than this still to be sent, nothing further is taken on."""


class Peer:
    """One end of a connection, of a socket kind. After what is not the protocol, or too long, nothing more comes."""

    def __init__(self, descriptor: int, kind: bytes, *, longest: int) -> None:
        """Connect to the socket that an O_PATH descriptor is of; a message may have `longest` bytes.

        Raises: `OSError`.
        """
        self._longest = longest
        self._read = bytearray()
        self._frames: list[bytes] = []
        self._taken = 0
        self._greeted = False
        self._unsent = bytearray(GREETING)
        self._later: bytearray | None = bytearray()
        """What is sent once the other side has said that it is ready; None from then on."""
        self.ended = False
        """Nothing more comes."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(f"/proc/self/fd/{descriptor}")
            ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
            self._unsent += bytes((COMMAND, len(ready))) + ready
            self.flush()
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_sending(self) -> bool:
        """Whether `flush` has something to do."""
        return bool(self._unsent)

    def send(self, frames: Sequence[bytes]) -> None:
        """Begin to send a message; `flush` goes on with it. Raises: `OSError` when the other side is gone, or does not
        read.
        """
        out = self._unsent if self._later is None else self._later
        if len(out) > MOST_UNSENT:
            raise BlockingIOError("it does not read what it is sent")
        for number, frame in enumerate(frames, 1):
            flags = MORE if number < len(frames) else 0
            if len(frame) > 255:
                out += struct.pack(">BQ", flags | LONG, len(frame))
            else:
                out += bytes((flags, len(frame)))
            out += frame
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now. Raises `OSError` when the other side is gone."""
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def receive(self) -> list[bytes] | None:
        """The next message; None when it is not there (see `ended`)."""
        for _ in range(READS):
            message = self._next()
            if message is not None or self.ended:
                return message
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if not data:
                self._end()
                return None
            self._read += data
        return None

    def close(self) -> None:
        """Hang up."""
        self._end()
        self._socket.close()

    def _next(self) -> list[bytes] | None:
        """A message of what was read, if one is whole."""
        if not self._greeted:
            if len(self._read) < len(GREETING):
                return None
            self._greeted = True
            if self._read[0] != GREETING[0] or self._read[10] < 3:
                self._end()
                return None
            del self._read[: len(GREETING)]
        while len(self._read) >= 2:
            flags, size, start = self._read[0], self._read[1], 2
            if flags & LONG:
                if len(self._read) < 9:
                    return None
                (size,) = struct.unpack_from(">Q", self._read, 1)
                start = 9
            if self._taken + size + FRAME_BYTES > self._longest:
                self._end()
                return None
            if len(self._read) < start + size:
                return None
            frame = bytes(self._read[start : start + size])
            del self._read[: start + size]
            if flags & COMMAND:
                self._begin()
                continue
            self._taken += size + FRAME_BYTES
            self._frames.append(frame)
            if not flags & MORE:
                message, self._frames, self._taken = self._frames, [], 0
                return message
        return None

    def _begin(self) -> None:
        """The other side is ready."""
        if self._later is not None:
            self._unsent += self._later
            self._later = None
            with suppress(OSError):  # it has gone, as reading will show
                self.flush()

    def _end(self) -> None:
        self.ended = True
        self._read.clear()
        self._frames.clear()
        self._unsent.clear()
