"""The child of the keeper that works on control groups, since that may block: to move a process the kernel waits for a
moment of rest (5 to 20 ms seen), and holds up everybody else who makes or removes a group meanwhile.

It outlives a keeper that is killed for as long as it takes to kill what is in the groups and to remove them.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from prorl_celery.node import prctl
from prorl_celery.node.keeper.loop import Loop, Timer
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.cgroups.groups import Groups, Limits

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""Longest wait for a sandbox's group; then it does without."""
FLUSH_SECONDS = 0.05
END_AGAIN_MS = 50
END_SECONDS = 60.0
"""How long a group is tried to be removed whose processes do not end (the kernel holds them)."""
LAST_SECONDS = 10.0
"""The same when the keeper has gone; what is left then a later keeper removes."""
CLOSE_SECONDS = 3.0

Placed = Callable[[str | None], None]
"""Called with what went wrong, or None."""


class Warden:
    """The keeper's side. Asks and never waits; `lost` is called when the child has gone, which it should not."""

    def __init__(self, groups: Groups, loop: Loop, lost: Callable[[], None]) -> None:
        self._loop = loop
        self._lost = lost
        self._outgoing: deque[dict[str, Any]] = deque()
        self._flushing: Timer | None = None
        self._awaited: dict[str, tuple[Placed, Timer]] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.pid = os.fork()
        if self.pid == 0:
            _child(theirs, groups)
        theirs.close()
        self._channel = ours
        loop.watch(ours.fileno(), self._read)

    def place(self, name: str, limits: Limits, pid: int, placed: Placed) -> None:
        """Put a process into a sandbox's group, which is made if need be."""
        timer = self._loop.after(ANSWER_SECONDS, lambda: self._answer(name, "it took too long"))
        self._awaited[name] = (placed, timer)
        self._send({"op": "place", "name": name, "limits": limits.to_json(), "pid": pid})

    def end(self, name: str) -> None:
        """Kill what is left in a sandbox's group and remove it, in the background."""
        self._send({"op": "end", "name": name})

    def close(self) -> None:
        """Have every group removed, and wait for that as long as a keeper that ends may."""
        if self._channel.fileno() < 0:
            return
        self._loop.unwatch(self._channel.fileno())
        self._channel.close()
        try:
            ended = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        if poll.poll(CLOSE_SECONDS * 1000):
            os.waitpid(self.pid, 0)
        os.close(ended)

    def _send(self, message: dict[str, Any]) -> None:
        self._outgoing.append(message)
        self._flush()

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        while self._outgoing and self._channel.fileno() >= 0:
            try:
                wire.send(self._channel, self._outgoing[0])
            except BlockingIOError:
                self._flushing = self._loop.after(FLUSH_SECONDS, self._flush)
                return
            except OSError:
                self._end_of_channel()
                return
            self._outgoing.popleft()

    def _read(self) -> None:
        try:
            message, _ = wire.receive(self._channel)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._end_of_channel()
        else:
            self._answer(message["name"], message["error"])

    def _answer(self, name: str, error: str | None) -> None:
        placed, timer = self._awaited.pop(name, (None, None))
        if placed is not None and timer is not None:
            timer.cancel()
            placed(error)

    def _end_of_channel(self) -> None:
        self._loop.unwatch(self._channel.fileno())
        self._channel.close()
        self._outgoing.clear()
        for name in list(self._awaited):
            self._answer(name, "the keeper's child for control groups has gone")
        self._lost()


def _child(channel: socket.socket, groups: Groups) -> None:
    """The child's whole life. Never returns, and runs none of the keeper's clean-up."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        prctl.name_process("prorl-warden")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        keep = channel.fileno()
        os.closerange(3, keep)
        os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
        serve(channel, groups)
        code = 0
    finally:
        os._exit(code)


def serve(channel: socket.socket, groups: Groups) -> None:
    """Do what the keeper asks until it has gone; then end every group."""
    ending: dict[str, float] = {}
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        if poll.poll(END_AGAIN_MS if ending else None):
            message, _ = wire.receive(channel)
            if message is None:
                break
            if message["op"] == "end":
                ending[message["name"]] = time.monotonic() + END_SECONDS
            else:
                wire.send(channel, {"name": message["name"], "error": _place(groups, message)})
        for name, deadline in list(ending.items()):
            if groups.end(name):
                del ending[name]
            elif time.monotonic() > deadline:
                log.error("the control group of sandbox %s cannot be removed: its processes do not end", name)
                del ending[name]
    poll.unregister(channel.fileno())
    last = time.monotonic() + LAST_SECONDS
    while not groups.remove() and time.monotonic() < last:
        poll.poll(END_AGAIN_MS)


def _place(groups: Groups, message: dict[str, Any]) -> str | None:
    try:
        groups.place(message["name"], Limits(**message["limits"]), message["pid"])
    except OSError as error:
        return str(error)
    return None
