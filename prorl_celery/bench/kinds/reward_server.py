"""A reward server that gives everything 1.0 at once, as a process: says its url, and ends with its standard input."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from prorl_celery.bench.report import BenchFailed

END_SECONDS = 10.0


@contextmanager
def reward_server() -> Iterator[str]:
    """Its url; it ends with the block. Raises `BenchFailed`."""
    program = "from prorl_celery.bench.kinds.reward_server import serve; serve()"
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            if not url:
                raise BenchFailed("the reward server did not start")
            yield url
        finally:
            server.stdin.close()
            try:
                server.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


async def _score(request: web.Request) -> web.Response:
    await request.json()
    return web.json_response({"score": 1.0})


async def _serve() -> None:
    app = web.Application()
    app.router.add_post("/score", _score)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/score", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def serve() -> None:
    """What the process runs."""
    asyncio.run(_serve())
