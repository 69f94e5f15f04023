"""How the rest of a node asks its keeper for sandboxes.

Each operation is a connection of its own; its end, however it comes, gives the operation up. So an admission is held
by an open connection, and a sandbox belongs to its connection until the client says that it keeps it: a worker that
dies or gives up in between leaves nothing behind.
"""

from __future__ import annotations

import builtins
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from prorl_celery.errors import FenceLost, KeeperLost, SandboxError, SandboxRefused, sandbox_error
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.base import CancelSignal, SandboxHandle, SandboxSpec
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled, Waiter
from prorl_celery.settings import Settings

STOP_SECONDS = 15.0
ASK_SECONDS = 5.0


class Admission:
    """A place for one rollout sandbox on this node. Held until released, used by a start, or lost with this process."""

    def __init__(self, channel: socket.socket, admission_id: str) -> None:
        self._channel = channel
        self.admission_id = admission_id

    def release(self) -> None:
        """Give the place back. Idempotent; after a start that used it, the sandbox holds the place."""
        self._channel.close()


class Starting:
    """A start under way. The sandbox belongs to this object, and ends with it, until it is kept."""

    def __init__(
        self,
        channel: socket.socket,
        answer: Callable[[float], LiveSandbox],
        deadline: float,
        admission: Admission | None,
        *,
        with_kernel: bool,
    ) -> None:
        self._channel = channel
        self._answer = answer
        self._deadline = deadline
        self._admission = admission
        self._with_kernel = with_kernel
        self._sandbox: LiveSandbox | None = None
        self._kept = False

    def sandbox(self, within: float | None = None) -> LiveSandbox:
        """Wait until its shell has run a first command and its kernel is up, if it has one; for `within` seconds or the
        start's own time. Call it once.

        Raises: as `KeeperClient.start`.
        """
        if within is not None:
            self._deadline = min(self._deadline, time.monotonic() + within)
        sandbox = self._answer(self._left())
        try:
            sandbox.shell.wait_ready(timeout=self._left())
            if self._with_kernel:
                sandbox.kernel_life.begin()
            first = sandbox.shell.run("true", timeout=self._left())
            if first.exit_code != 0:
                raise SandboxError(f"the sandbox's first command failed: {first.output!r}")
            if self._with_kernel:
                sandbox.kernel_life.wait_up(self._left())
        except BaseException:
            sandbox.close()
            raise
        self._sandbox = sandbox
        return sandbox

    def keep(self) -> None:
        """It stays when this is closed; the admission's place is its own now. Raises `KeeperLost`."""
        _send(self._channel, {"op": "keep"})
        self._kept = True
        if self._admission is not None:
            self._admission.release()

    def close(self) -> None:
        """End the sandbox, started or not, unless it was kept. Idempotent."""
        self._channel.close()
        if self._sandbox is not None and not self._kept:
            self._sandbox.close()

    def __enter__(self) -> Starting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


class KeeperClient:
    """Asks this node's keeper. Thread-safe: it holds no connection between calls."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._path = str(wire.keeper_socket(settings))

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """The keeper's boot id and counters. Raises `KeeperLost`."""
        return self._ask({"op": "status"}, timeout)

    def list(self, timeout: float = 5.0, *, spares: bool = False) -> builtins.list[dict[str, Any]]:
        """The live sandboxes; with `spares` also those that are nobody's yet. Raises `KeeperLost`."""
        found: builtins.list[dict[str, Any]] = []
        while True:
            page = self._ask({"op": "list", "after": len(found), "spares": spares}, timeout)
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
        with self.begin(spec, cancel=cancel, timeout=timeout, admission=admission) as starting:
            sandbox = starting.sandbox()
            starting.keep()
        return sandbox

    def begin(
        self, spec: SandboxSpec, *, cancel: CancelSignal, timeout: float, admission: Admission | None = None
    ) -> Starting:
        """Begin to start a sandbox, and do not wait for it. Raises: `KeeperLost`, `SandboxError`."""
        message = {"op": "start", "spec": spec.to_json(), "timeout": timeout}
        if admission is not None:
            message["admission"] = admission.admission_id
        channel = self._connect()
        try:
            _send(channel, message)
        except ValueError as error:
            channel.close()
            raise SandboxRefused(f"the sandbox's specification is too long: {error}") from error
        except KeeperLost:
            channel.close()
            raise

        def answer(seconds: float) -> LiveSandbox:
            return self._open(*self._reply(channel, cancel, seconds), cancel)

        return Starting(channel, answer, time.monotonic() + timeout, admission, with_kernel=spec.kernel)

    def attach(
        self,
        handle: SandboxHandle,
        *,
        cancel: CancelSignal,
        timeout: float = 10.0,
        fence: int = 0,
        takes_over: bool = False,
        known: int | None = None,
    ) -> LiveSandbox:
        """Open a live sandbox that another process started.

        `fence` is the claim's: whoever holds the sandbox under a lower one can use it no more, at once. 0 leaves things
        as they are. `takes_over` says that its last holder has died or been replaced in the midst of its work, so that
        what it left half-done must be waited for (`Shell.recover`, `Kernel.recover`, `Files.recover`). `known` is the
        latest fence that the job had before: one that is later than this, and not our own, was a claim's that the store
        has forgotten, or is one's that has fenced us out.

        Raises: `KeeperLost` when the keeper is another than the handle's, `SandboxError` when the sandbox is gone or
        cannot be taken over, `CannotGoOn` for a holder that is not known, `FenceLost` when a later claim holds it.
        """
        with self._connect() as channel:
            message = {"op": "attach", "sandbox_id": handle.sandbox_id, "boot": handle.boot}
            _send(channel, {**message, "fence": fence, "takes_over": takes_over, "known": known})
            reply, descriptors = self._reply(channel, cancel, timeout)
            return self._open(reply, descriptors, cancel)

    def stop(self, sandbox_id: str) -> None:
        """End a sandbox; return when it is gone. One that is gone already is no error.

        Raises: `KeeperLost`, `SandboxError` when it would not end in time (the keeper goes on trying).
        """
        self._ask({"op": "stop", "sandbox_id": sandbox_id}, STOP_SECONDS)

    def begin_stop(self, sandbox_id: str) -> None:
        """End a sandbox, and do not wait for it. Raises: `KeeperLost`, `SandboxError`."""
        self._ask({"op": "stop", "sandbox_id": sandbox_id, "wait": False}, ASK_SECONDS)

    def _open(self, reply: dict[str, Any], descriptors: builtins.list[int], cancel: CancelSignal) -> LiveSandbox:
        if len(descriptors) != reply["descriptors"]:
            wire.close_all(descriptors)
            raise SandboxError("the keeper passed no descriptors; this process may have too many open")
        return LiveSandbox(
            SandboxHandle.from_json(reply["handle"]),
            descriptors,
            nonce=reply["nonce"],
            slot=reply["slot"],
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
        except ValueError as error:  # also where this process has no descriptors left for what came along
            raise SandboxError(f"the keeper's answer came to {error}: too many files are open here") from error
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


def _error(reply: dict[str, Any]) -> SandboxError | FenceLost:
    """The error that the keeper named."""
    if reply.get("error") == FenceLost.__name__:
        return FenceLost(str(reply.get("message")))
    return sandbox_error(str(reply.get("error")), str(reply.get("message", "the keeper refused")))
