"""Count the commands that Redis runs, for benchmarks and tests.

    with CommandCount("redis://127.0.0.1:6379/0") as count:
        run_a_thousand_jobs()
    print(count.client_commands / 1000, count.script_commands / 1000, count.bytes / 1000)

Given: a Redis url (`redis://`, `unix://` or `redis+socket://`; no TLS). Gives: the commands that clients sent
and those that scripts ran (MONITOR marks these `lua`), by name too, and the bytes that went over the wire.
MONITOR slows the server: count, or take the time, not both.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections import Counter
from types import TracebackType
from typing import Self

import redis
from redis.connection import parse_url

_SECONDS = 30.0
_CHUNK = 1 << 20
_Line = bytes  # within the class the name means its property


class CommandCount:
    """The commands between entry and exit, those of this object left out."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url.replace("redis+socket://", "unix://", 1)
        self._marker = secrets.token_hex(16)
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self.client_commands = 0
        self.script_commands = 0
        self.by_name: Counter[str] = Counter()
        """Commands that clients sent, by name in upper case."""
        self.script_by_name: Counter[str] = Counter()
        self.bytes_in = 0
        """Bytes that clients sent to the server."""
        self.bytes_out = 0
        """Bytes that the server answered."""

    @property
    def bytes(self) -> int:
        """Bytes over the wire, both ways."""
        return self.bytes_in + self.bytes_out

    def __enter__(self) -> Self:
        self._client = redis.Redis.from_url(self._url, socket_timeout=_SECONDS)
        self._socket = _connect(self._url)
        self._monitored = 0
        self._thread = threading.Thread(target=self._read, name="redis-monitor", daemon=True)
        self._bytes_before = self._wire_bytes()
        self._thread.start()
        self._client.echo(f"begin-{self._marker}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._client.echo(f"end-{self._marker}")
            ended = self._ended.wait(_SECONDS)
            came_in, went_out = self._wire_bytes()
            self.bytes_in = came_in - self._bytes_before[0]
            self.bytes_out = max(0, went_out - self._bytes_before[1] - self._monitored)
        finally:
            self._socket.close()
            self._client.close()
            self._thread.join(_SECONDS)
        if kind is None and self._error is not None:
            raise self._error
        if kind is None and not ended:
            raise TimeoutError(f"MONITOR did not show the last command within {_SECONDS} s")

    def _wire_bytes(self) -> tuple[int, int]:
        info = self._client.info("stats")
        return int(info["total_net_input_bytes"]), int(info["total_net_output_bytes"])

    def _read(self) -> None:
        """Count lines until the end marker; `+TIME [DB ADDRESS] "NAME" "ARGUMENT"...` each."""
        begin, end = f'"begin-{self._marker}"'.encode(), f'"end-{self._marker}"'.encode()
        counting, rest = False, b""
        try:
            while chunk := self._socket.recv(_CHUNK):
                self._monitored += len(chunk)
                *lines, rest = (rest + chunk).split(b"\r\n")
                for line in lines:
                    if begin in line:
                        counting = True
                    elif end in line:
                        return
                    elif counting:
                        self._count(line)
        except OSError as error:
            self._error = error
        finally:
            self._ended.set()

    def _count(self, line: _Line) -> None:
        head, _, tail = line.partition(b"] ")
        name = tail[1:].partition(b'"')[0].decode(errors="replace").upper()
        if head.endswith(b" lua"):
            self.script_commands += 1
            self.script_by_name[name] += 1
        else:
            self.client_commands += 1
            self.by_name[name] += 1


def _connect(url: str) -> socket.socket:
    """A connection on which MONITOR has been accepted. Raises `OSError`, `ConnectionError`."""
    parts = parse_url(url)  # type: ignore[no-untyped-call]
    if "path" in parts:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(_SECONDS)
        made.connect(parts["path"])
    else:
        made = socket.create_connection((parts.get("host", "localhost"), parts.get("port", 6379)), _SECONDS)
    try:
        if password := parts.get("password"):
            _command(made, "AUTH", parts.get("username") or "default", password)
        _command(made, "MONITOR")
    except BaseException:
        made.close()
        raise
    made.settimeout(None)  # ended by close, in `__exit__`
    return made


def _command(connection: socket.socket, *words: str) -> None:
    packed = [word.encode() for word in words]
    connection.sendall(b"*%d\r\n" % len(packed) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in packed))
    answer = b""
    while not answer.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece:
            break
        answer += piece
    if not answer.startswith(b"+OK"):
        raise ConnectionError(f"Redis refused {words[0]}: {answer.decode(errors='replace').strip()}")
