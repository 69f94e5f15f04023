"""The floor: bash on a bare pseudo-terminal of the host, without prompt, echo or line editing.

The end of a command is the marker that our own shell prints (a nonce, an id, the exit code, the working directory).
Nothing is isolated, no time-out kept beyond the benchmark's own, no output cut.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ptyprocess import PtyProcess

from prorl_celery.bench.report import BenchFailed

READ_BYTES = 64 << 10


class RawPty:
    """A bash on the terminal behind a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._nonce = secrets.token_hex(6)
        self._closing = f"\3{self._nonce}\4".encode()
        self._commands = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._copied = 0

    @property
    def copied_bytes(self) -> int:
        return self._copied

    def run(self, command: str, *, timeout: float) -> str:
        """As `Way.run`."""
        self._commands += 1
        marker = f"printf '\\002{self._nonce}:%s:%s:%s\\003{self._nonce}\\004' {self._commands} $? \"$PWD\""
        os.write(self._descriptor, f"{command};{marker}\n".encode())
        said, _, marked = self._read(time.monotonic() + timeout).rpartition(f"\2{self._nonce}:".encode())
        self._copied += len(said)
        if not marked.startswith(b"%d:0:" % self._commands):
            raise BenchFailed(f"bash on a bare pty: `{command}` ended in {marked!r}")
        return said.decode()

    def _read(self, deadline: float) -> bytes:
        """Everything up to the end of a marker, in one piece."""
        pieces: list[bytes] = []
        end = b""
        while end != self._closing:
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise BenchFailed(f"bash on a bare pty did not answer in time; it said {b''.join(pieces)[-200:]!r}")
            pieces.append(os.read(self._descriptor, READ_BYTES))
            end = (end + pieces[-1][-len(self._closing) :])[-len(self._closing) :]
        whole = b"".join(pieces)
        self._copied += len(whole)
        return whole


@contextmanager
def raw_pty(folder: str) -> Iterator[RawPty]:
    """Bash in a folder."""
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "TERM": "dumb", "LANG": "C.UTF-8"}
    bash = PtyProcess.spawn(
        ["bash", "--norc", "--noprofile", "--noediting"],
        env={**environment, "PS1": "", "PS2": ""},
        cwd=folder,
        echo=False,
    )
    bash.delayafterclose = 0  # it would sleep
    try:
        yield RawPty(bash.fd)
    finally:
        bash.kill(signal.SIGKILL)
        bash.wait()
        bash.close(force=False)
