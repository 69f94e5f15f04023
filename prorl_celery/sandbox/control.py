"""The control channel of a sandbox: requests to the first process inside (`init.sh`), and file operations on it.

What runs in a sandbox may forge these answers (it could as well change the files): everything read here is bounded
and waited for with a deadline, and nothing is trusted beyond being bytes.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import string
import time
from contextlib import suppress

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import CancelSignal
from prorl_celery.sandbox.notes import FileNotes
from prorl_celery.sandbox.page import CONTROL, Page
from prorl_celery.sandbox.waiting import Waiter

REQUEST_SECONDS = 30.0
"""An operation takes milliseconds; one that takes this long is stuck."""

SLOWEST_BYTES_PER_SECOND = 2 << 20
"""What is allowed on top for a file's bytes, on a machine that has other things to do."""

LISTING_BYTES = 256 << 10
PATH_BYTES = 4096
PLAIN_BYTES = frozenset(b"/._-" + string.ascii_letters.encode() + string.digits.encode())
CODES = {
    2: errno.ENOENT, 5: errno.EIO, 13: errno.EACCES, 20: errno.ENOTDIR, 21: errno.EISDIR,
    22: errno.EINVAL, 28: errno.ENOSPC, 38: errno.ENOSYS,
}  # fmt: skip


class Control:
    """Requests to a sandbox's first process, one at a time.

    Where a holder before us, or a request of ours that was given up, has left half a conversation, that is brought to
    an end before the next request.
    """

    def __init__(self, channel: socket.socket, cancel: CancelSignal, page: Page, notes: FileNotes) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self._page = page
        self._notes = notes
        self._waiter = Waiter(channel.fileno(), cancel)
        self._broken: str | None = None

    def ping(self) -> None:
        """Return when the first process answers. Raises `SandboxError`."""
        self.request("ping")

    def tend(self) -> None:
        """Let the first process look after its children. Sends and waits for nothing."""
        if self._broken is None:
            with self._page:
                if self._notes.under_way:
                    return
                try:
                    self._channel.send(b"0 tend\n")
                except OSError:
                    # A full or closed channel shows itself at the next real request.
                    return

    def request(
        self, operation: str, path: str = "", *, size: int = 0, data: bytes = b"", limit_bytes: int = 0
    ) -> tuple[int, bytes]:
        """Send one request, and `data` behind it; return the answer's code and bytes.

        Raises: `SandboxError` when the sandbox is gone or stuck; what the cancel signal raises.
        """
        if self._broken is not None:
            raise SandboxError(f"the sandbox's control channel is unusable: {self._broken}")
        quoted = quote_path(path)
        self.synchronise()
        request_id = secrets.token_hex(8)
        head = _head(request_id, operation, size, quoted)
        seconds = REQUEST_SECONDS + (len(data) + limit_bytes) / SLOWEST_BYTES_PER_SECOND
        with self._page:
            out = head + data + request_id.encode() if operation == "write" else head
            self._notes.request(len(out), request_id if operation == "write" else None)
        return self._exchange(out, request_id, limit_bytes, time.monotonic() + seconds)

    def synchronise(self) -> None:
        """Bring a request that is under way to an end: what was not sent of it is made up for, so that it is none or
        fails, and its answer is thrown away. Raises as `request`.
        """
        if not self._notes.under_way:
            return
        unsent = self._notes.unsent
        request_id = secrets.token_hex(8)
        # Blanks at the end of a line mean nothing, nor does an empty line. In a file's place they lack what ends it.
        fill = b"\n" + b" " * unsent + b"\n" if unsent else b"\n"
        seconds = REQUEST_SECONDS + unsent / SLOWEST_BYTES_PER_SECOND
        self._exchange(fill + _head(request_id, "ping", 0, ""), request_id, None, time.monotonic() + seconds)

    def _exchange(self, out: bytes, request_id: str, limit_bytes: int | None, deadline: float) -> tuple[int, bytes]:
        """Send and wait for the request's answer. Without a limit whatever comes before it is thrown away."""
        try:
            return self._send_and_receive(out, f"\0{request_id} ".encode(), limit_bytes, deadline)
        except OSError as error:
            raise SandboxError(f"the sandbox is gone ({error.strerror or error})") from error

    def _send_and_receive(
        self, out: bytes, trailer: bytes, limit_bytes: int | None, deadline: float
    ) -> tuple[int, bytes]:
        page, notes = self._page, self._notes
        pending = memoryview(out)
        answer = bytearray()
        while True:
            events = self._waiter.readable(deadline, also_writable=bool(pending))
            if not events:
                raise SandboxError("the sandbox did not answer in time")
            page.begin(CONTROL)
            try:
                if pending:
                    with suppress(BlockingIOError):
                        sent = self._channel.send(pending[: 64 << 10])
                        pending = pending[sent:]
                        if limit_bytes is not None:
                            notes.unsent -= sent
                try:
                    data = self._channel.recv(64 << 10)
                except BlockingIOError:
                    continue
                if not data:
                    raise SandboxError("the sandbox is gone")
                answer += data
                at = answer.rfind(trailer, max(0, len(answer) - len(trailer) - 8))
                if at >= 0 and answer.endswith(b"\n"):
                    notes.under_way = False
                    code = answer[at + len(trailer) : -1]
                    return (int(code) if code.isdigit() else errno.EIO), bytes(answer[:at])
            finally:
                page.end()
            if limit_bytes is None:
                del answer[: -len(trailer) - 8]
            elif len(answer) > limit_bytes + 64:
                raise SandboxError("the sandbox's answer is longer than asked for")

    def has_written(self) -> bool:
        """Whether a write took place since the sandbox was marked; none is under way now. Raises as `request`."""
        self._page.check()
        writes, write_id = self._notes.count, self._notes.write_id
        if not writes:
            return False
        _, last = self.request("wrote", limit_bytes=64)
        return writes > 1 or last == f"{write_id} 0".encode()

    def close(self) -> None:
        self._broken = self._broken or "closed"
        self._channel.close()


class ControlFiles:
    """`Files` over the control channel."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def read(self, path: str, *, limit_bytes: int = 1 << 20) -> bytes:
        """The whole file. Raises as `Files.read`; `OSError` (EFBIG) when it is longer than `limit_bytes`."""
        code, data = self._control.request("read", path, size=limit_bytes + 1, limit_bytes=limit_bytes + 1)
        _check(code, path)
        if len(data) > limit_bytes:
            raise OSError(errno.EFBIG, f"longer than {limit_bytes} bytes", path)
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file: to one beside it, then renamed over it; keeps the executable bit."""
        code, _ = self._control.request("write", path, size=len(data), data=data)
        _check(code, path)

    def listing(self, path: str) -> list[str] | None:
        """Names two levels deep without hidden ones; None when `path` is not a folder."""
        code, data = self._control.request("list", path, size=LISTING_BYTES, limit_bytes=LISTING_BYTES)
        if code == errno.ENOTDIR:
            return None
        _check(code, path)
        names = data.split(b"\0")[:-1]  # the last is empty, or was cut
        return sorted(name.decode("utf-8", "replace") for name in names)

    def recover(self) -> bool:
        """As `Files.recover`."""
        return self._control.has_written()


def _head(request_id: str, operation: str, size: int, quoted: str) -> bytes:
    """A request's line. It ends with its id, without which it is taken to be half of one."""
    return f"{request_id} {operation} {size} {quoted}:{request_id}\n".encode()


def quote_path(path: str) -> str:
    """A path as bash's `printf %b` reads it: every byte but the plainest as an octal escape.

    Raises: `OSError` when it is relative, too long, or holds a NUL.
    """
    raw = path.encode("utf-8", "surrogateescape")
    if path and (not path.startswith("/") or b"\0" in raw):
        raise OSError(errno.EINVAL, "the path must be absolute", path)
    if len(raw) >= PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path[:80] + "...")
    return "".join(chr(byte) if byte in PLAIN_BYTES else f"\\0{byte:03o}" for byte in raw)


def _check(code: int, path: str) -> None:
    if code:
        number = CODES.get(code, errno.EIO)
        raise OSError(number, os.strerror(number), path)
