"""The HTTP API as the commands use it: a blocking connection of the standard library, kept open.

A busy or absent service is asked again for as long as the caller allows (429 and 503 carry `Retry-After`).
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from prorl_celery.errors import ProrlError
from prorl_celery.node.pause import pause

TIMEOUT_S = 90.0
"""Longer than any long-poll of the API."""
PATIENCE_S = 60.0
"""How long a service that is away or busy is waited for."""
LONGEST_PAUSE_S = 10.0


class ApiError(ProrlError):
    """The API refused. `status` is its HTTP status; 0 when nobody answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One connection to a service. Not thread-safe."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ApiError(0, f"{url!r} is not an http:// or https:// url")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def get(self, *path: str, patience: float = 0.0, **query: Any) -> Any:
        """GET a path (its parts are quoted) with a query (None is left out). Raises `ApiError`."""
        return self.call("GET", path, query=query, patience=patience)

    def post(self, *path: str, body: Any, patience: float = 0.0) -> Any:
        """POST a JSON body. Raises `ApiError`."""
        return self.call("POST", path, body=body, patience=patience)

    def delete(self, *path: str, **query: Any) -> Any:
        """DELETE. Raises `ApiError`."""
        return self.call("DELETE", path, query=query)

    def call(
        self,
        method: str,
        path: tuple[str, ...],
        *,
        query: dict[str, Any] | None = None,
        body: Any = None,
        patience: float = 0.0,
    ) -> Any:
        """One call, tried again while the service is busy or away, up to `patience` seconds. Raises
        `ApiError`.
        """
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = self._path + "/" + "/".join(quote(part, safe="") for part in path)
        target += "?" + urlencode(given) if given else ""
        payload = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + patience
        wait = 0.2
        while True:
            status, reply, retry_after = self._once(method, target, payload)
            if 200 <= status < 300:
                return reply
            wait = min(LONGEST_PAUSE_S, retry_after or wait * 1.5)
            if status not in {0, 429, 502, 503} or time.monotonic() + wait > deadline:
                raise ApiError(status, _said(self.url, status, reply))
            pause(wait)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._connection.close()

    def _once(self, method: str, target: str, payload: bytes | None) -> tuple[int, Any, float | None]:
        try:
            self._connection.request(method, target, payload, self._headers)
            response = self._connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            # Every call of ours may be repeated: submits are idempotent by their ids.
            self._connection.close()
            return 0, str(error) or type(error).__name__, None
        try:
            reply = json.loads(raw) if raw else None
        except ValueError:
            reply = raw[:200].decode("utf-8", "replace")
        after = response.headers.get("Retry-After", "")
        return response.status, reply, float(after) if after.isdigit() else None


def _said(url: str, status: int, reply: Any) -> str:
    if status == 0:
        return f"no service at {url} ({reply}); start one with `prorl up`"
    if not isinstance(reply, dict):
        return f"HTTP {status}: {reply}"
    text = str(reply.get("detail") or reply.get("title") or reply)
    fields = [f"{e.get('field')}: {e.get('message')}" for e in reply.get("errors", []) if isinstance(e, dict)]
    return "\n  ".join([f"{text} (HTTP {status})", *fields])
