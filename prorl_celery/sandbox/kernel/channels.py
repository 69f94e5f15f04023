"""Jupyter's messages over sockets without a name: sent by `jupyter_client`'s Session, read for what we need.

Loading this loads jupyter_client, so it is done when a kernel is first used in a process. What comes in was written in
a sandbox: it is bounded in length and number before it is read (`zmtp`), and what does not fit is passed over.
"""

from __future__ import annotations

import hmac
import json
import math
import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any

from jupyter_client.session import DELIM, Session

from prorl_celery.errors import NoKernel, SandboxError
from prorl_celery.sandbox.kernel.zmtp import DEALER, SUB, SUBSCRIBE_TO_ALL, Peer
from prorl_celery.sandbox.page import Page

MESSAGE_BYTES = 2 << 20
"""Longest message beside twice the text that is kept: the kernel's own side sends none that is near it."""
MESSAGES = 64
"""Messages read between two looks at the clock."""
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
    """The two channels of one kernel. Raises: `SandboxError` when out of descriptors."""

    def __init__(self, shell: int, iopub: int, *, key: bytes, output_bytes: int, page: Page) -> None:
        self._page = page
        self._session = Session(key=key)
        longest = MESSAGE_BYTES + 4 * LONGEST_CHARACTER * output_bytes
        self._poll = select.poll()
        with ExitStack() as undo:
            try:
                self._shell = undo.enter_context(closing(Peer(shell, DEALER, longest=longest)))
                self._iopub = undo.enter_context(closing(Peer(iopub, SUB, longest=longest)))
                self._iopub.send([SUBSCRIBE_TO_ALL])
            except OSError as error:
                raise SandboxError(f"the kernel cannot be connected to: {error}") from error
            undo.pop_all()
        self._peers = {peer.fileno(): peer for peer in (self._iopub, self._shell)}
        for peer in self._peers.values():
            self._watch(peer)

    def watch(self, descriptor: int) -> None:
        """Have `poll` tell of this one, too."""
        self._poll.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Have it tell of this one no more."""
        self._poll.unregister(descriptor)

    def poll(self, seconds: float) -> set[int]:
        """Wait for messages or a watched descriptor; returns those of the latter that are readable."""
        readable = set()
        for descriptor, events in self._poll.poll(max(0, math.ceil(seconds * 1000))):
            peer = self._peers.get(descriptor)
            if peer is None:
                readable.add(descriptor)
            elif events & select.POLLOUT:
                with self._page, suppress(OSError):  # it has gone, as reading will show
                    peer.flush()
                self._watch(peer)
        return readable

    def execute(self, code: str, note: Callable[[str], None]) -> str:
        """Send a cell; returns its id, of which `note` is told before. Raises: `NoKernel` when the kernel is not to be
        reached.
        """
        return self._send("execute_request", {**EXECUTE, "code": code}, note)

    def ask_info(self) -> str:
        """Ask what any kernel answers; returns the request's id. Raises as `execute`."""
        return self._send("kernel_info_request", {})

    def settle(self, deadline: float) -> None:
        """Ask what any kernel answers, and throw away all that comes until it has, or until the deadline."""
        request = self.ask_info()
        while (left := deadline - time.monotonic()) > 0:
            self.poll(left)
            if any(message.is_reply and message.parent == request for message in self.received(MESSAGES)):
                return

    def received(self, most: int) -> Iterator[Message]:
        """What has come, at most so many messages of each channel; output first."""
        self._page.check()
        for peer in list(self._peers.values()):
            for _ in range(most):
                frames = peer.receive()
                if frames is None:
                    break
                message = self._read(frames, is_reply=peer is self._shell)
                if message is not None:
                    yield message
            if peer.ended:
                self._poll.unregister(peer)
                del self._peers[peer.fileno()]
            elif peer.is_sending:
                self._watch(peer)

    def close(self) -> None:
        """Close both, dropping what waits in them."""
        self._shell.close()
        self._iopub.close()

    def _watch(self, peer: Peer) -> None:
        self._poll.register(peer, select.POLLIN | (select.POLLOUT if peer.is_sending else 0))

    def _send(self, kind: str, content: dict[str, Any], note: Callable[[str], None] = lambda _: None) -> str:
        message = self._session.msg(kind, content)
        frames = self._session.serialize(message)
        with self._page:
            note(str(message["header"]["msg_id"]))
            try:
                self._shell.send(frames)
            except OSError as error:
                raise NoKernel(f"the sandbox's kernel cannot be reached: {error}") from error
        if self._shell.is_sending:
            self._watch(self._shell)
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
