"""The model loop: one asyncio thread per process on which every model call runs, and how a job's thread waits for one.

A slot's thread hands over a coroutine and waits by `poll` on two descriptors: an eventfd that tells that the call has
ended, and the job's cancel descriptor. When the job must stop, or time is up, the coroutine is cancelled, which closes
its connection, which makes the engine abort the generation. The thread starts with the first call, so a process may
fork before it; a fork after it needs a `ModelLoop` of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast

import aiohttp

from prorl_celery.errors import BackendError, InternalError, StageTimeout
from prorl_celery.sandbox.base import CancelSignal

T = TypeVar("T")
CLEANUP_SECONDS = 5.0
"""How long a cancelled call may take to close its connection; it takes about a millisecond."""
KEEPALIVE_SECONDS = 30.0
CONNECT_SECONDS = 10.0


class ModelLoop:
    """Hundreds of calls at once on one thread and one HTTP session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._session: aiohttp.ClientSession | None = None
        self._resources: dict[object, tuple[object, Callable[[], Awaitable[object]]]] = {}
        self._calls: set[_Call[Any]] = set()
        self._pid = 0
        self._stopped = False

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session; only for coroutines that run on this loop. Has no limit on connections."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 18,
            )
        return self._session

    def resource(self, key: object, make: Callable[[], tuple[T, Callable[[], Awaitable[object]]]]) -> T:
        """Something kept for this loop's life, such as another client; `make` gives it and how to close it.

        Only for coroutines that run on this loop.
        """
        if key not in self._resources:
            self._resources[key] = make()
        return cast(T, self._resources[key][0])

    def call(self, factory: Callable[[], Awaitable[T]], *, cancel: CancelSignal, timeout: float) -> T:
        """Run `factory()` on the loop and wait for it, at most `timeout` seconds.

        When this returns or raises, the coroutine has ended: no second call can be in flight beside a first.
        Raises: what the coroutine raises, what `cancel.raise_if_set` raises, `StageTimeout`, and `BackendError` when
        the loop is stopped meanwhile.
        """
        cancel.raise_if_set()
        if timeout <= 0:
            raise StageTimeout("no time is left for a model call")
        call = _Call(factory)
        try:
            loop = self._start(call)
            call.wait(timeout, cancel)
            if not call.ended:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the call has ended with it
                    loop.call_soon_threadsafe(call.cancel)
                call.wait(CLEANUP_SECONDS)
                cancel.raise_if_set()
                raise StageTimeout(f"a model call did not end within the {timeout:.1f} s that were left")
        finally:
            with self._lock:
                self._calls.discard(call)
            call.close()
        return call.result()

    def stop(self, timeout: float = 5.0) -> None:
        """Cancel every call, close every connection, end the thread. Idempotent; later calls are refused."""
        with self._lock:
            self._stopped = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).add_done_callback(
            lambda _: loop.call_soon_threadsafe(loop.stop)
        )
        thread.join(timeout)
        with self._lock:
            for call in self._calls:  # handed over too late to be run
                call.abandon()
        if thread.is_alive():
            raise InternalError(f"the model loop did not stop within {timeout} s")

    def _start(self, call: _Call[Any]) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._stopped:
                raise BackendError("the model loop is stopped")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="model-loop", daemon=True)
                self._thread.start()
            elif self._pid != os.getpid():
                raise InternalError("the model loop was started before this process was forked")
            self._loop.call_soon_threadsafe(call.start)
            self._calls.add(call)
            return self._loop

    async def _close(self) -> None:
        me = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not me]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, close in self._resources.values():
            await close()
        if self._session is not None:
            await self._session.close()


class _Call(Generic[T]):
    """One coroutine on its way: started on the loop, waited for by a thread.

    The eventfd is closed by the waiting thread, and its number may be another file's the next moment: so the end of
    the task writes to it only under the lock that the closing takes.
    """

    def __init__(self, factory: Callable[[], Awaitable[T]]) -> None:
        self._factory = factory
        self._task: asyncio.Task[T] | None = None
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.ended = False

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wait(self, timeout: float, cancel: CancelSignal | None = None) -> None:
        """Until the call has ended, the job must stop, or the time is up."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if cancel is not None:
            poll.register(cancel.fileno(), select.POLLIN)
        until = time.monotonic() + timeout
        while not self.ended and (left := until - time.monotonic()) > 0:
            ready = poll.poll(min(left, 3600.0) * 1000)
            if any(fd != self._fd for fd, _ in ready):
                return

    def result(self) -> T:
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise BackendError("the model loop was stopped during a call")
        return self._task.result()

    def close(self) -> None:
        with self._lock:
            os.close(self._fd)
            self._fd = -1

    async def _run(self) -> T:
        return await self._factory()

    def abandon(self) -> None:
        """Let the waiting thread go: the loop has ended."""
        with self._lock:
            self.ended = True
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def _done(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not report it when nobody waits any more
        self.abandon()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
