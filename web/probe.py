"""Asks an inference server, once, whether it can do what its registration says.

Given a `BackendSpec`, gives the `Backend` to store: `up` with what the server told, or `down` when it cannot be reached
or is not ready. A server that is there but cannot serve (no token ids for a token kind, another model, a refused key)
is a problem that names the field. All of it takes at most `PROBE_SECONDS`; redirects are not followed.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prorl_celery.scheduling.backends import Backend, BackendSpec
from web.problems import bad_field

PROBE_SECONDS = 5.0
MAX_REPLY_BYTES = 1 << 20

TOKEN_KINDS = frozenset({"vllm", "vllm_generate", "legacy"})

Reply = tuple[int, Any]
"""HTTP status and the JSON of the body (its first 200 characters as text when it is none)."""


class Unreachable(Exception):
    """The server did not answer in time, or says itself that it is not ready."""


def normal_url(url: str) -> str:
    """The one form of a backend's url: without `/v1` and without a slash at its end. Raises `Problem` 422."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]{1,2048}", url):
        raise bad_field("url", "not an http:// or https:// url of a server")
    if parts.query or parts.fragment or parts.username is not None:
        raise bad_field("url", "a server's url has no query, fragment or user in it; a key goes into api_key")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def probe(spec: BackendSpec) -> Backend:
    """The backend to store. Raises `Problem` 422 that names the field."""
    url = normal_url(spec.url)
    if spec.kind in TOKEN_KINDS:
        _check_tokenizer(spec.tokenizer)
    if spec.policy_version is not None and spec.policy_version >= 2**31:
        raise bad_field("policy_version", "a version is a 32-bit number")
    known = {**spec.model_dump(), "url": url}
    server = _Server(url, spec.api_key, time.monotonic() + PROBE_SECONDS)
    try:
        max_model_len = None if spec.kind == "legacy" else _served_length(server, spec.model)
        gives_ids = _gives_ids(server, spec)
    except Unreachable:
        return Backend(**known, state="down", max_model_len=None, gives_ids=spec.kind in TOKEN_KINDS)
    return Backend(**known, state="up", max_model_len=max_model_len, gives_ids=gives_ids)


def _check_tokenizer(folder: str | None) -> None:
    if not folder:
        raise bad_field("tokenizer", "a token kind needs the local directory of the model's tokenizer")
    if "\0" in folder or not Path(folder).is_dir():
        raise bad_field("tokenizer", f"no such directory: {folder!r}")
    if not (Path(folder) / "tokenizer.json").is_file():
        raise bad_field("tokenizer", f"no tokenizer.json in {folder!r}")


def _served_length(server: _Server, model: str) -> int | None:
    """The model's longest context in tokens, where the server tells."""
    status, reply = server.ask("GET", "/v1/models")
    models = reply.get("data") if status == 200 and isinstance(reply, dict) else None
    if not isinstance(models, list):
        return None
    served = {entry["id"]: entry for entry in models if isinstance(entry, dict) and isinstance(entry.get("id"), str)}
    if served and model not in served:
        raise bad_field("model", f"the backend serves {', '.join(sorted(served)[:10])}, not {model!r}")
    length = served.get(model, {}).get("max_model_len")
    return length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None


def _gives_ids(server: _Server, spec: BackendSpec) -> bool:
    """Whether a one-token call gives token ids. Raises `Problem` for a token kind that does not give them with their
    log-probabilities, and for a chat that gives no message.
    """
    if spec.kind == "chat":
        return _chats(server, spec.model)
    if spec.kind == "vllm":
        path, body = (
            "/v1/completions",
            {"model": spec.model, "prompt": [1], "max_tokens": 1, "logprobs": 0, "return_token_ids": True},
        )
    elif spec.kind == "vllm_generate":
        path, body = (
            "/inference/v1/generate",
            {"model": spec.model, "token_ids": [1], "sampling_params": {"max_tokens": 1, "logprobs": 0}},
        )
    else:
        path, body = "/generate", {"prompt_ids": [1], "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "seed": 0}
    status, reply = server.ask("POST", path, body)
    said = f"HTTP {status}: {json.dumps(reply)[:200]}" if status != 200 else "no list of token ids in the answer"
    holder = _first_choice(reply)
    ids = holder.get("response_ids" if spec.kind == "legacy" else "token_ids")
    if status != 200 or not (isinstance(ids, list) and ids and all(type(token) is int for token in ids)):
        raise bad_field("kind", f"the backend gives no token ids at {path} ({said}); register it as kind 'chat'")
    if len(_logprobs(holder)) != len(ids):
        raise bad_field("kind", f"the backend gives ids without their log-probabilities at {path}")
    return True


def _logprobs(holder: Mapping[str, Any]) -> list[Any]:
    """What stands for log-probabilities in a reply, in any of the forms; the calls check the values."""
    found = holder.get("logprobs")
    if isinstance(found, dict):
        found = found.get("token_logprobs") or found.get("content")
    return found if isinstance(found, list) else []


def _chats(server: _Server, model: str) -> bool:
    """Whether the chat route gives token ids and their log-probabilities. A server that refuses to be asked for them is
    asked without.
    """
    path = "/v1/chat/completions"
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    status, reply = server.ask("POST", path, {**body, "return_token_ids": True, "logprobs": True})
    choice = _first_choice(reply)
    if status in {400, 422}:
        status, reply = server.ask("POST", path, body)
        choice = _first_choice(reply)
    if status != 200 or not isinstance(choice.get("message"), dict):
        said = f"HTTP {status}: {json.dumps(reply)[:200]}" if status != 200 else "no message in the answer"
        raise bad_field("kind", f"the backend does not chat at {path} ({said})")
    ids = choice.get("token_ids")
    if not (isinstance(ids, list) and ids and all(type(token) is int for token in ids)):
        return False
    return len(_logprobs(choice)) == len(ids)


def _first_choice(reply: Any) -> Mapping[str, Any]:
    """The reply's first choice, or the reply where it has none."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    holder = choices[0] if isinstance(choices, list) and choices else reply
    return holder if isinstance(holder, dict) else {}


class _Server:
    """One server, asked within one deadline."""

    def __init__(self, url: str, api_key: str | None, deadline: float) -> None:
        self._parts = urlsplit(url)
        self._headers = {"Accept": "application/json", "Content-Type": "application/json", "Connection": "close"}
        if api_key:
            if not re.fullmatch(r"[!-~]+", api_key):
                raise bad_field("api_key", "has characters that no HTTP header can carry")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._deadline = deadline

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        """One call. Raises `Unreachable`; `Problem` for a refused key."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._remaining())
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._parts.path + path, body=data, headers=self._headers)
            response = connection.getresponse()
            raw = bytearray()
            while len(raw) < MAX_REPLY_BYTES and (piece := response.read1(65_536)):
                raw += piece
                if connection.sock is not None:
                    connection.sock.settimeout(self._remaining())
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(str(error)) from error
        finally:
            connection.close()
        # vLLM answers 403 for routes that it was started without, whoever asks.
        if response.status == 401 or (response.status == 403 and "Authorization" in self._headers):
            raise bad_field("api_key", f"the backend refuses it (HTTP {response.status})")
        if response.status >= 500 or response.status == 429:
            raise Unreachable(f"HTTP {response.status}")
        try:
            return response.status, json.loads(raw)
        except (ValueError, RecursionError):
            return response.status, raw[:200].decode("utf-8", "replace")

    def _remaining(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Unreachable("no time left")
        return left
