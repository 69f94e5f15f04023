"""How the rest of a node asks its keeper for sandboxes.

Each operation is a connection of its own; its end, however it comes, gives the operation up. So an admission is held
by an open connection, and a sandbox belongs to its connection until the client says that it keeps it: a worker that
dies or gives up in between leaves nothing behind.
"""

from __future__ import annotations

import builtins
import socket
import time
from typing import Any

from prorl_celery import errors
from prorl_celery.errors import KeeperLost, SandboxError
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.base import CancelSignal, SandboxHandle, SandboxSpec
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled, Waiter
from prorl_celery.settings import Settings

STOP_SECONDS = 15.0


class Admission:
    """A place for one rollout sandbox on this node. Held until released, used by a start, or lost with this process."""

    def __init__(self, channel: socket.socket, admission_id: str) -> None:
        self._channel = channel
        self.admission_id = admission_id

    def release(self) -> None:
        """Give the place back. Idempotent; after a start that used it, the sandbox holds the place."""
        self._channel.close()


class KeeperClient:
    """Asks this node's keeper. Thread-safe: it holds no connection between calls."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._path = str(wire.keeper_socket(settings))

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """The keeper's boot id and counters. Raises `KeeperLost`."""
        return self._ask({"op": "status"}, timeout)

    def list(self, timeout: float = 5.0) -> builtins.list[dict[str, Any]]:
        """The live sandboxes. Raises `KeeperLost`."""
        found: builtins.list[dict[str, Any]] = []
        while True:
            page = self._ask({"op": "list", "after": len(found)}, timeout)
            found += page["sandboxes"]
            if not page["more"]:
                return found

    def admit(self, job_id: str, *, cancel: CancelSignal, timeout: float) -> Admission | None:
        """Wait in line for a place; None when none came within `timeout` seconds.

        Raises: `KeeperLost`, and what the cancel signal raises.
        """
        channel = self._connect()
        try:
            _send(channel, {"op": "admit", "job_id": job_id, "timeout": timeout})
            # The keeper keeps the time; the margin is for its answer.
            reply, _ = self._reply(channel, cancel, timeout + 5.0)
        except BaseException:
            channel.close()
            raise
        if not reply["admitted"]:
            channel.close()
            return None
        return Admission(channel, reply["admission"])

    def start(
        self, spec: SandboxSpec, *, cancel: CancelSignal, timeout: float, admission: Admission | None = None
    ) -> LiveSandbox:
        """Start a sandbox; return when its shell has run a first command.

        Raises: `SandboxUnavailable`, `SandboxError` (a time-out too), `KeeperLost`, and what the cancel signal raises.
        Whatever it raises, nothing is left behind.
        """
        deadline = time.monotonic() + timeout
        message = {"op": "start", "spec": spec.to_json(), "timeout": timeout}
        if admission is not None:
            message["admission"] = admission.admission_id
        with self._connect() as channel:
            try:
                _send(channel, message)
            except ValueError as error:
                raise SandboxError(f"the sandbox's specification is too long: {error}") from error
            reply, descriptors = self._reply(channel, cancel, timeout)
            sandbox = self._open(reply, descriptors, cancel)
            try:
                sandbox.shell.wait_ready(timeout=max(0.0, deadline - time.monotonic()))
                first = sandbox.shell.run("true", timeout=max(0.0, deadline - time.monotonic()))
                if first.exit_code != 0:
                    raise SandboxError(f"the sandbox's first command failed: {first.output!r}")
                _send(channel, {"op": "keep"})
            except BaseException:
                sandbox.close()
                raise
        if admission is not None:
            admission.release()
        return sandbox

    def attach(self, handle: SandboxHandle, *, cancel: CancelSignal, timeout: float = 10.0) -> LiveSandbox:
        """Open a live sandbox that another process started.

        Raises: `KeeperLost` when the keeper is another than the handle's, `SandboxError` when the sandbox is gone.
        """
        with self._connect() as channel:
            _send(channel, {"op": "attach", "sandbox_id": handle.sandbox_id, "boot": handle.boot})
            reply, descriptors = self._reply(channel, cancel, timeout)
            return self._open(reply, descriptors, cancel)

    def stop(self, sandbox_id: str) -> None:
        """End a sandbox; return when it is gone. One that is gone already is no error.

        Raises: `KeeperLost`, `SandboxError` when it would not end in time (the keeper goes on trying).
        """
        self._ask({"op": "stop", "sandbox_id": sandbox_id}, STOP_SECONDS)

    def _open(self, reply: dict[str, Any], descriptors: builtins.list[int], cancel: CancelSignal) -> LiveSandbox:
        if len(descriptors) != 2:
            wire.close_all(descriptors)
            raise SandboxError("the keeper passed no descriptors; this process may have too many open")
        return LiveSandbox(
            SandboxHandle.from_json(reply["handle"]),
            (descriptors[0], descriptors[1]),
            nonce=reply["nonce"],
            cancel=cancel,
            output_bytes=self._settings.tool_output_bytes,
            stop=self.stop,
        )

    def _connect(self) -> socket.socket:
        channel = wire.new_socket()
        try:
            channel.connect(self._path)
        except OSError as error:
            channel.close()
            raise KeeperLost(f"no keeper listens at {self._path}: {error.strerror or error}") from error
        return channel

    def _ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        with self._connect() as channel, NeverCancelled() as never:
            _send(channel, message)
            reply, descriptors = self._reply(channel, never, timeout)
            wire.close_all(descriptors)
            return reply

    def _reply(
        self, channel: socket.socket, cancel: CancelSignal, timeout: float
    ) -> tuple[dict[str, Any], builtins.list[int]]:
        cancel.raise_if_set()
        waiter = Waiter(channel.fileno(), cancel)
        deadline = time.monotonic() + timeout
        if not waiter.readable(deadline):
            raise SandboxError(f"the keeper did not answer within {timeout:g} s")
        try:
            reply, descriptors = wire.receive(channel)
        except OSError as error:
            raise KeeperLost(f"the keeper is gone: {error.strerror or error}") from error
        if reply is None:
            raise KeeperLost("the keeper closed the connection")
        if not reply.get("ok"):
            wire.close_all(descriptors)
            raise _error(reply)
        return reply, descriptors


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    try:
        wire.send(channel, message)
    except OSError as error:
        raise KeeperLost(f"the keeper is gone: {error.strerror or error}") from error


def _error(reply: dict[str, Any]) -> SandboxError:
    """The error that the keeper named."""
    kind = getattr(errors, str(reply.get("error")), SandboxError)
    message = str(reply.get("message", "the keeper refused"))
    if isinstance(kind, type) and issubclass(kind, SandboxError):
        return kind(message)
    return SandboxError(message)
