"""A reward server that really listens, on a thread of its own, and answers as a test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Answer = Callable[[dict[str, Any]], Any]


class RewardStub:
    """`answer(body)` gives the reply: JSON, a `web.Response`, or a coroutine of one. It keeps bodies and headers."""

    def __init__(self, answer: Answer = lambda body: {"score": 1.0}, *, port: int = 0) -> None:
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.arrived = threading.Event()
        self.aborted = threading.Event()
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/score"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.arrived.set()
        try:
            reply = self.answer(body)
            if asyncio.iscoroutine(reply):
                reply = await reply
        except asyncio.CancelledError:
            self.aborted.set()
            raise
        return reply if isinstance(reply, web.StreamResponse) else web.json_response(reply)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        app = web.Application()
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stopping.wait()
        await runner.cleanup()


async def forever() -> None:
    """Never answer."""
    await asyncio.Event().wait()
