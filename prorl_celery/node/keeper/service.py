"""The keeper's side of the wire: requests in, answers out, and what the end of a connection means."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from prorl_celery.errors import CannotGoOn, FenceLost, KeeperLost, SandboxError
from prorl_celery.node.keeper.admission import Admissions
from prorl_celery.node.keeper.entry import Entry
from prorl_celery.node.keeper.listener import Listener
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.sandboxes import Sandboxes
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.page import read_fence, write_fence
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

PAGE = 200
"""Sandboxes in one packet of a listing."""
START_GRACE_SECONDS = 5.0
"""A start that is not done this long after its client's time-out is given up here: the client may be wedged."""
LONGEST_ADMISSION_SECONDS = 3600.0
MESSAGE_CHARACTERS = 4000
"""Longest text of an error: it may quote what was asked for, and what is escaped in JSON must still fit a packet."""


class Connection:
    """One client. Holds its admission and, until it says `keep`, the sandbox that it started."""

    def __init__(self, service: Service, channel: socket.socket) -> None:
        self._service = service
        self._channel = channel
        self.admission: str | None = None
        self.starting: str | None = None
        self.open = True
        service.loop.watch(channel.fileno(), self._readable)

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Answer; a client that does not read its answers, or has gone, is dropped."""
        if not self.open:
            return
        try:
            wire.send(self._channel, message, descriptors)
        except OSError:
            self.close()

    def fail(self, error: SandboxError | FenceLost) -> None:
        """Answer with an error."""
        self.send({"ok": False, "error": type(error).__name__, "message": str(error)[:MESSAGE_CHARACTERS]})

    def has_hung_up(self) -> bool:
        """Whether the client has gone and its end has merely not been read yet."""
        try:
            return not self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Drop the client and what it holds."""
        if not self.open:
            return
        self.open = False
        self._service.loop.unwatch(self._channel.fileno())
        self._channel.close()
        if self.starting is not None:
            self._service.sandboxes.stop(self.starting)
        if self.admission is not None:
            self._service.admissions.give_back(self.admission)

    def _readable(self) -> None:
        try:
            message, descriptors = wire.receive(self._channel)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        except ValueError as error:
            self.fail(SandboxError(f"a bad request: {error}"))
            return
        wire.close_all(descriptors)  # no request carries any
        if message is None:
            self.close()
            return
        try:
            self._service.serve(self, message)
        except (SandboxError, FenceLost) as error:
            self.fail(error)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self.fail(SandboxError(f"a bad request: {type(error).__name__}: {error}"))


class Service:
    """Listens, and serves every request without waiting for anything."""

    def __init__(
        self,
        settings: Settings,
        boot: str,
        loop: Loop,
        *,
        guard_pid: Callable[[], int] = lambda: 0,
        left: int = 0,
    ) -> None:
        """`left`: sandboxes that keepers before this one left.

        Raises: `SandboxError` when another keeper has the place.
        """
        self.settings = settings
        self.boot = boot
        self.loop = loop
        self.admissions = Admissions(settings.rollout_slots + settings.init_ahead, loop)
        self.sandboxes = Sandboxes(settings, boot, loop, self.admissions, guard_pid)
        self.attaches = 0
        self.takeovers = 0
        """Attaches that followed upon the death of a holder."""
        self._operations: dict[str, Callable[[Connection, dict[str, Any]], None]] = {
            "status": self._status,
            "list": self._list,
            "admit": self._admit,
            "start": self._start,
            "keep": self._keep,
            "attach": self._attach,
            "stop": self._stop,
        }
        self._listener = Listener(wire.keeper_socket(settings), loop, lambda channel: Connection(self, channel))
        self.sandboxes.count_leaked(left)

    def close(self) -> None:
        """Stop listening and begin to end every sandbox."""
        self._listener.close()
        self.sandboxes.stop_all()

    def serve(self, connection: Connection, message: dict[str, Any]) -> None:
        """One request. Raises `SandboxError`, and what a malformed request leads to."""
        operation = self._operations.get(message["op"])
        if operation is None:
            raise SandboxError(f"the keeper knows no {message['op']!r}")
        operation(connection, message)

    def _status(self, connection: Connection, message: dict[str, Any]) -> None:
        self.sandboxes.count_leaked(0)  # what could not be written down yet
        connection.send(
            {
                "ok": True,
                "boot": self.boot,
                "pid": os.getpid(),
                "live": len(self.sandboxes.live),
                "spares": len(self.sandboxes.spares),
                "spares_missing": self.sandboxes.spares.missing,
                "spares_taken": self.sandboxes.spares.taken,
                "rollout_live": self.sandboxes.rollout_live,
                "admitted": self.admissions.admitted,
                "waiting": self.admissions.waiting,
                "room": self.admissions.room,
                "starts": self.sandboxes.starts,
                "attaches": self.attaches,
                "takeovers": self.takeovers,
                "stops": self.sandboxes.stops,
                "leaked": self.sandboxes.leaked,
                **self.sandboxes.limits.status(),
                "stuck": self.sandboxes.stuck,
            }
        )

    def _list(self, connection: Connection, message: dict[str, Any]) -> None:
        after = int(message.get("after", 0))
        entries = self.sandboxes.entries() if message.get("spares") else self.sandboxes.live
        page = [entry.listed() for entry in entries[after : after + PAGE]]
        connection.send({"ok": True, "sandboxes": page, "more": after + PAGE < len(entries)})

    def _admit(self, connection: Connection, message: dict[str, Any]) -> None:
        if connection.admission is not None:
            raise SandboxError("this connection holds an admission already")
        timeout = min(_seconds(message["timeout"]), LONGEST_ADMISSION_SECONDS)

        def answer(admission: str, admitted: bool) -> None:
            connection.admission = admission if admitted else None
            connection.send({"ok": True, "admitted": admitted, "admission": admission})

        admission = self.admissions.ask(timeout, answer)
        if connection.open and connection.admission is None:
            connection.admission = admission
        elif not connection.open:
            self.admissions.give_back(admission)

    def _start(self, connection: Connection, message: dict[str, Any]) -> None:
        if connection.starting is not None:
            raise SandboxError("this connection is starting a sandbox already")
        spec = SandboxSpec.from_json(message["spec"])
        if connection.has_hung_up():
            connection.close()
            return

        timeout = _seconds(message["timeout"])

        def started(entry: Entry, error: SandboxError | None) -> None:
            overdue.cancel()
            if error is not None:
                connection.starting = None
                connection.fail(error)
            else:
                self._give(connection, entry)

        overdue = self.loop.after(timeout + START_GRACE_SECONDS, connection.close)
        try:
            entry = self.sandboxes.start(spec, message.get("admission"), started)
        except BaseException:
            overdue.cancel()
            raise
        connection.starting = entry.sandbox_id

    def _keep(self, connection: Connection, message: dict[str, Any]) -> None:
        connection.starting = None

    def _attach(self, connection: Connection, message: dict[str, Any]) -> None:
        if message["boot"] != self.boot:
            raise KeeperLost("the keeper that held this sandbox is gone, and the sandbox with it")
        entry = self.sandboxes.get(message["sandbox_id"])
        if entry is None:
            raise SandboxError(f"the sandbox {message['sandbox_id']} is gone")
        fence = int(message.get("fence", 0))
        if fence and entry.page is not None:
            held, known = read_fence(entry.page), message.get("known")
            if known is not None and held > int(known) and held != fence:
                raise CannotGoOn(f"a claim that is not known was at work in the sandbox {entry.sandbox_id}")
            if fence < held:
                raise FenceLost(f"a later claim holds the sandbox {entry.sandbox_id}")
            # From here on whoever held it uses it no more.
            write_fence(entry.page, fence)
        self.attaches += 1
        self.takeovers += bool(message.get("takes_over"))
        self._give(connection, entry)

    def _give(self, connection: Connection, entry: Entry) -> None:
        process, handle = entry.process, entry.handle
        if process is None or handle is None or entry.page is None or not process.alive:
            connection.fail(SandboxError("the sandbox ended while it started"))
            return
        kernel = self.sandboxes.kernels.descriptors(entry.sandbox_id)
        descriptors = (process.pty, process.control.fileno(), entry.page, *kernel)
        entry.holders += 1
        answer = {"ok": True, "handle": handle.to_json(), "nonce": entry.nonce, "slot": entry.holders}
        connection.send({**answer, "descriptors": len(descriptors)}, descriptors)

    def _stop(self, connection: Connection, message: dict[str, Any]) -> None:
        """Answer when it is gone; with `wait` false, when its end has begun."""
        sandbox_id = str(message["sandbox_id"])
        if message.get("wait", True):
            would_not = SandboxError(f"the sandbox {sandbox_id} would not end; the keeper goes on trying")
            self.sandboxes.stop(sandbox_id, lambda: connection.send({"ok": True}), lambda: connection.fail(would_not))
        else:
            self.sandboxes.stop(sandbox_id)
            connection.send({"ok": True})


def _seconds(value: Any) -> float:
    """A time-out of a client's: a number that a heap of timers can order."""
    seconds = float(value)
    if not seconds >= 0:
        raise ValueError(f"{seconds} is no time-out")
    return seconds
