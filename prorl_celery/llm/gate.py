"""The gate before each model call: whether it may be made now, at which backend, with which weights; and how a call
that is under way is given up.

A conversation asks its `Gate` for a `Passage` and makes the call by it. Who holds the gate may interrupt a passage from
any thread: `finish` lets the request that the backend has end by itself, but no other is made (a call may be waiting to
try again); `abort` asks the engine to give the request up, which answers with the tokens it has, and closes the
connection when it does not. A call that came to nothing raises `Interrupted`: the turn is asked again, from its ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, TypeVar

from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.wire import repeated

T = TypeVar("T")
Interruption = Literal["finish", "abort"]

GIVE_UP_SECONDS = 3.0
"""How long an engine that was asked to give up a request may take to answer with what it has."""


class Interrupted(Exception):
    """The call was given up before it came to anything; nothing of it lives on."""


class Passage:
    """One call's leave to be made at `endpoint`, whose weights are of `version` (None: nobody told).

    `cache_salt` keeps what the engine caches under these weights apart from other weights'.
    """

    def __init__(self, endpoint: Endpoint, version: int | None, cache_salt: str | None = None) -> None:
        self.endpoint = endpoint
        self.version = version
        self.cache_salt = cache_salt
        self._lock = threading.Lock()
        self._asked: Interruption | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Future[None] | None = None

    def interrupt(self, how: Interruption) -> None:
        """Have the call end, from any thread. A later `finish` does not undo an `abort`."""
        with self._lock:
            if self._asked == "abort" or self._asked == how:
                return
            self._asked = how
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the call has ended with it
                    self._loop.call_soon_threadsafe(self._wake)

    async def make(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        pause_first: bool = False,
        give_up: Callable[[], Awaitable[bool]] | None = None,
    ) -> T:
        """Make the call: `attempt()`, repeated as `wire.repeated` does it.

        `give_up()` asks the engine to end the request with what it has, and tells whether it knows how to.
        Raises: `Interrupted`, and what the attempt raises.
        """
        at_backend = False

        async def once() -> T:
            nonlocal at_backend
            if self._asked is not None:
                raise Interrupted
            at_backend = True
            try:
                return await attempt()
            finally:
                at_backend = False

        self._begin()
        call = asyncio.ensure_future(repeated(once, pause_first=pause_first))
        try:
            while not call.done():
                assert self._woken is not None
                either: set[asyncio.Future[Any]] = {call, self._woken}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if call.done() or not self._woken.done():
                    break
                self._woken = asyncio.get_running_loop().create_future()
                if self._asked == "finish" and at_backend:
                    continue
                if at_backend and give_up is not None and await give_up():
                    await asyncio.wait({call}, timeout=GIVE_UP_SECONDS)
                break
        finally:
            with self._lock:
                self._loop = None
            if not call.done():
                call.cancel()
                await asyncio.wait({call})
            if not call.cancelled():
                call.exception()  # read, so that asyncio does not report it when we are cancelled ourselves
        if call.cancelled():
            raise Interrupted
        return call.result()

    def _begin(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._woken = self._loop.create_future()
            if self._asked is not None:
                self._woken.set_result(None)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


class Gate(Protocol):
    """Held by whoever knows of pauses and versions."""

    def call(self, endpoint: Endpoint) -> AbstractContextManager[Passage]:
        """Wait until a call may be made; within the context it is in flight.

        The passage names the backend to call, which may be another than the one that was meant.
        Raises: what the job's signal raises, `BackendError` where no backend will do.
        """
        ...


class OpenGate:
    """Lets everything pass, with the version that the endpoint was given with."""

    def call(self, endpoint: Endpoint) -> AbstractContextManager[Passage]:
        version = endpoint.policy_version
        return nullcontext(Passage(endpoint, version, None if version is None else f"v{version}"))


OPEN = OpenGate()
