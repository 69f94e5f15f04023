"""Jupyter's messages over sockets without a name: sent by `jupyter_client`'s Session, read for what we need.

Loading this loads ZeroMQ and jupyter_client, so it is done when a kernel is first used in a process. One ZeroMQ
context, and its one thread, serve all kernels of the process. What comes in was written in a sandbox: it is bounded in
length and number before it is read, and what does not fit is passed over.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zmq
from jupyter_client.session import DELIM, Session

HIGH_WATER = 16
"""Messages that wait in this process for a cell that nobody reads."""
MESSAGE_BYTES = 2 << 20
"""Longest message beside twice the text that is kept: the kernel's own side sends none that is near it."""
LONGEST_CHARACTER = 6
"""Bytes of a character in JSON."""
EXECUTE = {
    "silent": False,
    "store_history": True,
    "user_expressions": {},
    "allow_stdin": False,
    "stop_on_error": False,
}


@dataclass(frozen=True, slots=True)
class Message:
    """One that a kernel sent. `parent` is the id of the request that it belongs to; `foreign`: somebody else's."""

    kind: str
    parent: str
    foreign: bool
    content: dict[str, Any]
    is_reply: bool


class Channels:
    """The two channels of one kernel. Raises: `zmq.ZMQError` when out of descriptors."""

    def __init__(self, shell: int, iopub: int, *, key: bytes, output_bytes: int) -> None:
        self._session = Session(key=key)
        self._longest = MESSAGE_BYTES + 4 * LONGEST_CHARACTER * output_bytes
        self.shell = self._socket(zmq.DEALER, shell)
        try:
            self.iopub = self._socket(zmq.SUB, iopub)
        except zmq.ZMQError:
            self.shell.close()
            raise
        self.iopub.subscribe(b"")
        self._poller = zmq.Poller()
        for socket in (self.shell, self.iopub):
            self._poller.register(socket, zmq.POLLIN)

    def watch(self, descriptor: int) -> None:
        """Have `poll` tell of this one, too."""
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Have it tell of this one no more."""
        self._poller.unregister(descriptor)

    def poll(self, seconds: float) -> set[int]:
        """Wait for messages or a watched descriptor; returns those of the latter that are readable."""
        found = self._poller.poll(max(0, math.ceil(seconds * 1000)))
        return {source for source, _ in found if isinstance(source, int)}

    def execute(self, code: str) -> str:
        """Send a cell; returns its id. Raises: `zmq.ZMQError` when the kernel is not to be reached."""
        return self._send("execute_request", {**EXECUTE, "code": code})

    def ask_info(self) -> str:
        """Ask what any kernel answers; returns the request's id."""
        return self._send("kernel_info_request", {})

    def received(self, most: int) -> Iterator[Message]:
        """What has come, at most so many messages of each channel; output first."""
        for socket in (self.iopub, self.shell):
            for _ in range(most):
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                message = self._read(frames, is_reply=socket is self.shell)
                if message is not None:
                    yield message

    def close(self) -> None:
        """Close both, dropping what waits in them."""
        self.shell.close(0)
        self.iopub.close(0)

    def _socket(self, kind: int, descriptor: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        socket.linger = 0
        socket.sndtimeo = 0
        socket.rcvhwm = HIGH_WATER
        socket.maxmsgsize = self._longest
        # A kernel that ends is followed by another, to which we connect by ourselves.
        socket.reconnect_ivl = -1
        socket.connect(f"ipc:///proc/self/fd/{descriptor}")
        return socket

    def _send(self, kind: str, content: dict[str, Any]) -> str:
        message = self._session.msg(kind, content)
        self._session.send(self.shell, message)
        return str(message["header"]["msg_id"])

    def _read(self, frames: list[bytes], *, is_reply: bool) -> Message | None:
        """A message, if it is one. Session's own reading would parse dates and copy five dictionaries for each."""
        try:
            start = frames.index(DELIM) + 1
            signature, *parts = frames[start : start + 5]
            if not hmac.compare_digest(signature, self._session.sign(parts)):
                return None
            header, parent, _, content = (json.loads(part.decode("utf-8", "replace")) for part in parts)
            foreign = parent.get("session", self._session.session) != self._session.session
            return Message(str(header["msg_type"]), str(parent.get("msg_id")), foreign, dict(content), is_reply)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
