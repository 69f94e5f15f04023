"""A small agent for the scripted backend's tests: keeps ids across turns, simulates the tools in a directory."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prorl_celery.testing import ScriptedBackend
from prorl_celery.testing.scripted.answers import parse_tool_calls
from prorl_celery.testing.scripted.tokens import ScriptedTokenizer

TOKENIZER = ScriptedTokenizer()
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"
PROMPT = TOKENIZER.encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("bash", "str_replace_editor", "finish")
]


def post(url: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON and headers of a POST, errors included."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), dict(error.headers)


class Agent:
    """One rollout. `ids` is the whole context; `turns` holds each turn's text."""

    def __init__(self, url: str, task: str, workspace: Path, *, tools: Any = TOOLS, seed: int | None = None) -> None:
        self._url = url
        self._workspace = workspace
        self._seed = seed
        self.ids = TOKENIZER.encode(TOKENIZER.render([{"role": "user", "content": task}], tools))
        self.turns: list[str] = []
        self.observations: list[str] = []
        self.finished = False

    def run(self, turns: int = 10) -> Agent:
        """Turns until it finishes, or so many."""
        for _ in range(turns):
            self.turn()
            if self.finished:
                break
        return self

    def turn(self) -> None:
        """One model call and its tool calls."""
        body = {"model": "scripted", "prompt": self.ids, "max_tokens": 4096, "return_token_ids": True, "logprobs": 0}
        status, answer, _ = post(self._url + "/v1/completions", body | {"seed": self._seed})
        assert status == 200, answer
        choice = answer["choices"][0]
        assert choice["prompt_token_ids"] == self.ids
        sampled = choice["token_ids"]
        assert sampled[-1] == TOKENIZER.end_id
        self.ids = self.ids + sampled
        self.turns.append(choice["text"])
        _, calls = parse_tool_calls(choice["text"], "")
        observations = [self._observe(call["function"]) for call in calls]
        if not calls and "<tool_call>" in choice["text"]:
            observations = ["This is no tool call."]
        self.finished = self.finished or not observations
        self.observations += observations
        rendered = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in observations)
        self.ids = self.ids + TOKENIZER.encode(f"\n<|im_start|>user{rendered}<|im_end|>\n<|im_start|>assistant\n")

    def _observe(self, function: dict[str, str]) -> str:
        name, arguments = function["name"], json.loads(function["arguments"])
        match name, arguments:
            case "finish", _:
                self.finished = True
                return ""
            case "bash", {"command": str(command)}:
                here = command.replace("/workspace", str(self._workspace))
                done = subprocess.run(
                    ["bash", "-c", here],
                    cwd=self._workspace,
                    env={"PATH": PATH},
                    capture_output=True,
                    text=True,
                    timeout=30,
                )
                return f"{done.stdout}{done.stderr}exit code {done.returncode}"
            case "str_replace_editor", {"command": "create", "path": path, "file_text": text}:
                Path(path.replace("/workspace", str(self._workspace))).write_text(text)
                return "created"
        return "wrong tool or arguments"


def complete(backend: ScriptedBackend, **changes: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    body = {"model": "scripted", "prompt": PROMPT, "max_tokens": 100, "return_token_ids": True, "logprobs": 0}
    return post(backend.url + "/v1/completions", body | changes)


def send(backend: ScriptedBackend, **headers: str) -> socket.socket:
    """Send a completion and leave it unanswered."""
    where = urlsplit(backend.url)
    body = json.dumps({"model": "scripted", "prompt": PROMPT, "max_tokens": 500, "return_token_ids": True})
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{''.join(lines)}\r\n"
    connection = socket.create_connection((where.hostname, where.port), 30)
    connection.sendall((head + body).encode())
    return connection
