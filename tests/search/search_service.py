"""A search service that does as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from prorl_celery.llm.loop import ModelLoop
from prorl_celery.sandbox.waiting import NeverCancelled

Reply = tuple[int, dict[str, str], bytes]


class Service:
    """The service: where it is, and what it was asked: (headers, body)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []


def results(*rows: dict[str, Any]) -> Reply:
    return 200, {}, json.dumps({"query": "x", "results": rows}).encode()


@pytest.fixture
def service() -> Callable[..., AbstractContextManager[Service]]:
    """`service(says)`: a server that answers what `says(body)` gives; `says` may block."""

    @contextmanager
    def start(says: Callable[[dict[str, Any]], Reply]) -> Iterator[Service]:
        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.asked.append((dict(self.headers), body))
                status, headers, data = says(body)
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(data)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    """The caller has gone."""

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        server.daemon_threads, server.block_on_close = True, False
        told = Service(f"http://127.0.0.1:{server.server_address[1]}/search")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="search-service")
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join(10)
            server.server_close()

    return start


@pytest.fixture
def loop() -> Iterator[ModelLoop]:
    loop = ModelLoop()
    yield loop
    loop.stop()


@pytest.fixture
def never() -> Iterator[NeverCancelled]:
    with NeverCancelled() as never:
        yield never
