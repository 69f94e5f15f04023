"""The scripted backend's HTTP server: vLLM's routes, and `/scripted/*` for the tests that drive it.

Given: an `Engine`. Gives: an aiohttp application, and `serve`, which runs it until SIGTERM, SIGINT or the end
of stdin. Every answer carries `X-Scripted-Backend: 1`, so that nobody takes it for a model.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
from array import array
from collections.abc import Callable
from typing import Any

from aiohttp import web

from prorl_celery.testing.scripted import wire
from prorl_celery.testing.scripted.answers import Answers
from prorl_celery.testing.scripted.engine import Call, Engine, Generation
from prorl_celery.testing.scripted.wire import Refused

MAX_BODY = 64 << 20
BACKLOG = 4096  # a thousand rollouts may connect in one moment
HANG_SECONDS = 3600.0
CRASHED = 70
"""The exit status of a crash on demand."""
Body = dict[str, Any]
Answer = Callable[[Body, Call, Generation], str]


class Routes:
    """The handlers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers = Answers(engine)

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_refusals])
        app.on_response_prepare.append(_label)
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/v1/models", self.models),
                web.get("/metrics", self.metrics),
                web.post("/v1/completions", self.completions),
                web.post("/v1/chat/completions", self.chat_completions),
                web.post("/inference/v1/generate", self.generate),
                web.post("/generate", self.legacy_generate),
                web.post("/update_weight_version", self.update_weight_version),
                web.get("/weight_info", self.weight_info),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.post("/abort_requests", self.abort_requests),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
                web.get("/scripted/stats", self.stats),
                web.get("/scripted/calls", self.calls),
                web.post("/scripted/fail", self.fail),
                web.post("/scripted/reset", self.reset),
            ]
        )
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response(self._answers.models())

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self._answers.metrics())

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        wire.check_common(body, self._engine)
        ids = wire.prompt_ids(body.get("prompt"), self._engine)
        limit = wire.max_tokens(body, wire.COMPLETION_TOKENS)
        return await self._generate(request, "cmpl-", body, body, ids, limit, self._answers.completion)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        wire.check_common(body, self._engine)
        ids = wire.prompt_ids(wire.chat_text(body, self._engine.tokenizer), self._engine)
        limit = wire.max_tokens(body, self._engine.max_model_len)
        return await self._generate(request, "chatcmpl-", body, body, ids, limit, self._answers.chat_completion)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        wire.check_common(body, self._engine)
        parameters = body.get("sampling_params", {})
        if not isinstance(parameters, dict):
            raise Refused(400, "sampling_params must be an object", "sampling_params")
        ids = wire.prompt_ids(body.get("token_ids"), self._engine, "token_ids")
        limit = wire.max_tokens(parameters, wire.COMPLETION_TOKENS)
        prefix = "generate-tokens-"
        return await self._generate(request, prefix, body, parameters, ids, limit, self._answers.generate)

    async def legacy_generate(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        ids = wire.prompt_ids(body.get("prompt_ids"), self._engine, "prompt_ids")
        limit = wire.max_tokens(body, self._engine.max_model_len)
        return await self._generate(request, "", body, body, ids, limit, self._answers.legacy)

    async def _generate(
        self,
        request: web.Request,
        prefix: str,
        body: Body,
        parameters: Body,
        ids: array[int],
        limit: int,
        answer: Answer,
    ) -> web.StreamResponse:
        wire.check_sampling(parameters)
        name = request.headers.get("X-Request-Id") or secrets.token_hex(16)
        salt = wire.cache_salt(body)
        with self._engine.call(prefix + name, request.path, ids, parameters.get("seed"), salt) as call:
            if call.failure is not None and (failed := await _fail_early(request, call)) is not None:
                return failed
            made = await self._engine.generate(call, limit)
            text = answer(body, call, made)
            if call.failure is not None:
                call.outcome = call.failure.mode
                if call.failure.mode == "half_json":
                    text = text[: len(text) // 2]
            return web.Response(text=text, content_type="application/json", headers={"X-Request-Id": name})

    async def tokenize(self, request: web.Request) -> web.Response:
        body, tokenizer = await _body(request), self._engine.tokenizer
        if "messages" in body:
            ids = tokenizer.encode(wire.chat_text(body, tokenizer))
        elif isinstance(body.get("prompt"), str):
            ids = tokenizer.encode(body["prompt"])
        else:
            raise Refused(400, "give prompt or messages", "prompt")
        answer = {"count": len(ids), "max_model_len": self._engine.max_model_len, "tokens": ids}
        return web.json_response(answer | {"token_strs": None})

    async def detokenize(self, request: web.Request) -> web.Response:
        tokens = (await _body(request)).get("tokens")
        if tokens == []:
            return web.json_response({"prompt": ""})
        ids = wire.prompt_ids(tokens, self._engine, "tokens").tolist()
        return web.json_response({"prompt": self._engine.tokenizer.decode(ids)})

    async def abort_requests(self, request: web.Request) -> web.Response:
        names = (await _body(request)).get("request_ids")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refused(400, "request_ids must be a list of text", "request_ids")
        self._engine.abort(names)
        return web.json_response({})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        self._engine.ledger.forget_prefixes()
        return web.Response()

    async def update_weight_version(self, request: web.Request) -> web.Response:
        version = (await _body(request)).get("new_version")
        if not isinstance(version, str):
            raise Refused(400, "new_version must be text", "new_version")
        self._engine.weight_version = version
        return web.json_response({})

    async def weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self._engine.weight_version})

    async def stats(self, request: web.Request) -> web.Response:
        return web.json_response(self._engine.ledger.stats())

    async def calls(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", "100")
        if not limit.isdecimal():
            raise Refused(400, "limit must be a whole number", "limit")
        return web.json_response({"calls": self._engine.ledger.recent(int(limit))})

    async def fail(self, request: web.Request) -> web.Response:
        try:
            self._engine.failures.order(await _body(request))
        except ValueError as error:
            raise Refused(400, str(error)) from error
        return web.json_response({})

    async def reset(self, request: web.Request) -> web.Response:
        self._engine.failures.clear()
        self._engine.ledger.reset()
        return web.json_response({})


async def _fail_early(request: web.Request, call: Call) -> web.StreamResponse | None:
    """Play the failures that need no generation; None for the others."""
    assert call.failure is not None
    mode = call.failure.mode
    call.outcome = mode
    if mode == "http500":
        return web.json_response(wire.error_body(500, "failed on demand"), status=500)
    if mode == "http429":
        body = wire.error_body(429, "too many requests, on demand")
        return web.json_response(body, status=429, headers={"Retry-After": "1"})
    if mode == "html":
        return web.Response(text="<html><body>It works!</body></html>", content_type="text/html")
    if mode == "close":
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
    if mode in ("hang", "crash"):
        try:
            await asyncio.sleep(HANG_SECONDS)
        except asyncio.CancelledError:
            if mode == "crash":
                os._exit(CRASHED)
            raise
    return None


async def _body(request: web.Request) -> Body:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except Refused as refused:
        return web.json_response(refused.body, status=refused.status)
    return response


async def _label(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Scripted-Backend"] = "1"


async def listen(engine: Engine, host: str, port: int) -> tuple[web.AppRunner, str]:
    """Serve on the running loop until the runner is cleaned up; its url. Raises `OSError` when it cannot listen."""
    listener = socket.create_server((host, port), backlog=BACKLOG)
    # Without handler_cancellation aiohttp lets a handler run on after its client has gone.
    runner = web.AppRunner(
        Routes(engine).application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.5
    )
    await runner.setup()
    await web.SockSite(runner, listener, backlog=BACKLOG).start()
    bound = listener.getsockname()
    return runner, f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"


async def serve(engine: Engine, host: str, port: int, ready: Callable[[str], None], *, watch_stdin: bool) -> None:
    """Listen, call `ready` with the url, serve until told to stop. Raises `OSError` when it cannot listen."""
    runner, url = await listen(engine, host, port)
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if watch_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end, stopped)
    try:
        ready(url)
        await stopped.wait()
    finally:
        await runner.cleanup()


def _stop_at_end(stopped: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stopped.set()
