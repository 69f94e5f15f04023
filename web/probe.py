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
    """Whether a one-token call gives token ids. Raises `Problem` for a token kind that does not."""
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
    elif spec.kind == "legacy":
        path, body = "/generate", {"prompt_ids": [1], "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "seed": 0}
    else:
        path, body = (
            "/v1/chat/completions",
            {
                "model": spec.model,
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 1,
                "return_token_ids": True,
            },
        )
    status, reply = server.ask("POST", path, body)
    holder = reply
    if isinstance(reply, dict) and isinstance(choices := reply.get("choices"), list) and choices:
        holder = choices[0]
    ids = holder.get("response_ids" if spec.kind == "legacy" else "token_ids") if isinstance(holder, dict) else None
    gives = status == 200 and isinstance(ids, list) and all(type(token) is int for token in ids)
    if not gives and spec.kind in TOKEN_KINDS:
        said = f"HTTP {status}: {json.dumps(reply)[:200]}" if status != 200 else "no list of token ids in the answer"
        raise bad_field("kind", f"the backend gives no token ids at {path} ({said}); register it as kind 'chat'")
    return gives


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
        if response.status in {401, 403}:
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
