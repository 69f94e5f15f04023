"""A judge that does as it is told: an HTTP server of the chat form, and a handler whose eval asks a model."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prorl_celery.handlers.base import Handler

Says = Callable[[dict[str, Any]], str | int]
"""What is said to a request's body, or the HTTP status that it is refused with."""


class Judge:
    """The server. `asked` are the bodies of all calls so far; `model` is whom they are for."""

    def __init__(self, url: str, asked: list[dict[str, Any]]) -> None:
        self.url = url
        self.asked = asked
        self.model = "judge"

    def texts(self) -> list[str]:
        """What each call's last message said."""
        return [body["messages"][-1]["content"] for body in self.asked]


@contextmanager
def judge(says: Says) -> Iterator[Judge]:
    """A server of the chat form that says what `says(body)` gives."""
    asked: list[dict[str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._send(200, {"data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            said = says(body)
            if isinstance(said, int):
                self._send(said, {"error": {"message": "refused by test"}}, {"Retry-After": "0"} if said == 429 else {})
                return
            message = {"role": "assistant", "content": said}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._send(200, {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 5}})

        def _send(self, status: int, reply: dict[str, Any], headers: dict[str, str] | None = None) -> None:
            data = json.dumps(reply).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: Any) -> None:
            """A caller that has gone is no matter."""

    server = Server(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="judge")
    thread.start()
    try:
        yield Judge(f"http://127.0.0.1:{server.server_address[1]}", asked)
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


class Asks(Handler):
    """Its eval asks a model the instance's `question`, by the instance's `options`, and gives what was said."""

    data_source = "asks"
    uses_sandbox = False

    def rollout(self, ctx: Any) -> Any:
        return {}

    def eval(self, ctx: Any) -> Any:
        options = {"max_tokens": 64, "timeout": 20.0, **ctx.instance.get("options", {})}
        said = ctx.ask_model([{"role": "user", "content": ctx.instance["question"]}], **options)
        return {"reward": 1.0, "said": said}
