"""What a supervisor's children may ask of it: one datagram socket, which all of them inherit.

    beat      I am at work; one that has said so and then falls silent for PRORL_SILENCE is killed
    retire    I take no new jobs and end by myself: start a fresh one beside me
    solo      a process of its own is wanted for a suspect job

Who asks is what the kernel says (SCM_CREDENTIALS), so that no child speaks for another. A child's end never blocks
and never fails: a beat that finds the socket full is made up for by the next one.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from typing import Any, NamedTuple

BEAT, RETIRE, SOLO = "beat", "retire", "solo"
OPS = (BEAT, RETIRE, SOLO)

_CREDENTIALS = struct.Struct("3i")
_NOBODY_READS = (errno.EAGAIN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE)
"""The supervisor is slow, or it is gone, and we soon with it."""
_MOST_BYTES = 256
_MOST_AT_ONCE = 1000
"""Read in one go at most: who floods the socket must not keep its reader from everything else."""


class Request(NamedTuple):
    """One request: the pid that sent it, and one of `OPS`."""

    pid: int
    op: str


class SupervisorLine:
    """A child's line to its supervisor; without one (`NO_SUPERVISOR`) nothing is said to anybody. For any thread."""

    def __init__(self, end: socket.socket | None = None) -> None:
        self._end = end
        self._retiring = False

    def beat(self) -> None:
        """Say that this process is at work: at every heartbeat, from the thread that beats, whether Redis answers or
        not.
        """
        self._say(BEAT)
        if self._retiring:  # the word may have been lost
            self._say(RETIRE)

    def retire(self) -> None:
        """Say that this process takes no new jobs and ends by itself. It has no deadline for that while it beats."""
        self._retiring = True
        self._say(RETIRE)

    def want_solo(self) -> None:
        """Ask for the process that runs suspects. Harmless where it runs already."""
        self._say(SOLO)

    def _say(self, op: str) -> None:
        if self._end is None:
            return
        try:
            self._end.send(json.dumps({"op": op}).encode())
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise


NO_SUPERVISOR = SupervisorLine()


class Requests:
    """The supervisor's end. `line` is for its children, to be passed on to them at their fork."""

    def __init__(self, ends: tuple[socket.socket, socket.socket] | None = None) -> None:
        self._ours, theirs = ends or socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._theirs = theirs
        for end in (self._ours, theirs):
            end.setblocking(False)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.line = SupervisorLine(theirs)

    @classmethod
    def adopt(cls, descriptors: tuple[int, int]) -> Requests:
        """The socket of a supervisor that has executed itself anew: its `descriptors`."""
        ours, theirs = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        for end in (ours, theirs):
            end.set_inheritable(False)
        return cls((ours, theirs))

    @property
    def descriptor(self) -> int:
        """Readable when somebody asks. No child keeps it."""
        return self._ours.fileno()

    @property
    def descriptors(self) -> tuple[int, int]:
        """Both ends, for `adopt`."""
        return self._ours.fileno(), self._theirs.fileno()

    def read(self) -> list[Request]:
        """What has been asked since the last time, oldest first. Never blocks."""
        found: list[Request] = []
        while len(found) < _MOST_AT_ONCE:
            try:
                data, ancillary, _, _ = self._ours.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                break
            op = _op_of(data)
            pid = _sender(ancillary)
            if op is not None and pid is not None:
                found.append(Request(pid, op))
        return found

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self._theirs.close()


def _op_of(data: bytes) -> str | None:
    """The op of a message; None for what is no message of ours (a child of another version may know more)."""
    try:
        said: Any = json.loads(data)
    except ValueError:
        return None
    op = said.get("op") if isinstance(said, dict) else None
    return op if op in OPS else None


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid: int = _CREDENTIALS.unpack_from(data)[0]
            return pid if pid != os.getpid() else None
    return None
