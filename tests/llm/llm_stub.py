"""What the tests of the model client use: a tokenizer made here (byte-level BPE, ChatML), a cancel signal, and a stub
backend that really listens."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from prorl_celery.errors import Cancelled

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<think>", "</think>",
]  # fmt: skip
CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\nCall with <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
CORPUS = [
    "def main(): return the sum of a list\n    for item in items:\n        total += item\n",
    '{"name": "bash", "arguments": {"command": "ls -la"}}\nuser assistant system tool\n\nHello, world!\n',
]
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def make_tokenizer(
    directory: Path,
    *,
    template: str = CHATML,
    specials: Sequence[str] = SPECIALS,
    eos: str = "<|im_end|>",
    bos: str | None = None,
    flags: bool = True,
    sentencepiece: str | None = None,
) -> Path:
    """A tokenizer directory. Without `flags` the marks without a bar are added tokens that are not special, as in
    Qwen's own files. `sentencepiece` is a Metaspace `prepend_scheme` for a tokenizer of that kind."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=sentencepiece is not None))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if sentencepiece is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=sentencepiece, split=False)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=sentencepiece, split=False)
        alphabet = [chr(code) for code in range(32, 127)] + ["\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    data = json.loads(tokenizer.to_str())
    if not flags:
        for token in data["added_tokens"]:
            token["special"] = "|" in token["content"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    config = {"eos_token": eos, "bos_token": bos, "pad_token": {"content": specials[0]}, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [specials.index(eos), 0]}), "utf-8")
    return directory


class Signal:
    """A `CancelSignal` that a test sets."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        return self._fd

    def raise_if_set(self) -> None:
        if self.is_set:
            raise Cancelled("the test cancelled")

    def close(self) -> None:
        os.close(self._fd)


Answer = Callable[[dict[str, Any]], Any]


class Stub:
    """A backend on a thread of its own. `answer(body)` gives the reply: a dict, a `web.Response`, or a coroutine's
    result. It remembers the bodies, headers and aborted calls that it saw."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.paths: list[str] = []
        self.answer: Answer = lambda body: {}
        self.live = 0
        self.aborted = threading.Event()
        self.arrived = threading.Event()
        self.connections: set[Any] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.paths.append(request.path)
        self.connections.add(request.transport)
        self.live += 1
        self.arrived.set()
        try:
            reply = self.answer(body)
            if asyncio.iscoroutine(reply):
                reply = await reply
        except asyncio.CancelledError:
            self.aborted.set()
            raise
        finally:
            self.live -= 1
        return reply if isinstance(reply, web.StreamResponse) else web.json_response(reply)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stopping.wait()
        await runner.cleanup()


def completion(
    ids: list[int], *, prompt: list[int] | None = None, finish_reason: str = "stop", **changes: Any
) -> dict[str, Any]:
    """A well-formed reply of /v1/completions."""
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": finish_reason,
        "token_ids": ids,
        "prompt_token_ids": prompt,
        "logprobs": {"token_logprobs": [-0.25] * len(ids)},
        **changes,
    }
    return {
        "id": "cmpl-x",
        "choices": [choice],
        "usage": {"prompt_tokens": len(prompt or []), "completion_tokens": len(ids)},
    }
