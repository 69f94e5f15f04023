"""HTTP for the client: one kept-alive connection a thread, patience with a busy or restarting service.

Every call of the API may be repeated (a job has its id before it is sent), so a lost connection, a 429 and a 503 are
tried again, as `Retry-After` says, until the call's patience is over.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from prorl_celery.errors import ApiError, ApiUnavailable

BUSY = frozenset({429, 503})
REPLY_SECONDS = 30.0
"""How long a reply may take to begin, and to go on, beyond what the call itself asked to wait."""

PAUSE_SECONDS = (0.1, 5.0)
"""First and longest pause before another try, where the service names none."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not a problem."""

    status: int
    body: bytes
    retry_after: float | None


class Transport:
    """Calls one service. Thread-safe."""

    def __init__(self, url: str, token: str | None, patience_seconds: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"not an http:// or https:// url: {url!r}")
        self._parts = parts
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._patience_seconds = patience_seconds
        self._local = threading.local()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connections: set[http.client.HTTPConnection] = set()

    def call(
        self, method: str, path: str, *, query: dict[str, Any] | None = None, body: Any = None, wait: float = 0.0
    ) -> Reply:
        """Make one call; `wait` is how long the service was asked to hold its answer.

        Raises `ApiError`, and `ApiUnavailable` when no answer came within `wait` and the patience.
        """
        deadline = time.monotonic() + wait + self._patience_seconds
        target = self._parts.path.rstrip("/") + path
        if given := {name: value for name, value in (query or {}).items() if value is not None}:
            target += "?" + urlencode(given)
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        pause = PAUSE_SECONDS[0]
        while True:
            trouble: ApiError
            try:
                reply = self._once(method, target, data, wait)
            except (OSError, http.client.HTTPException) as error:
                trouble = ApiUnavailable(f"{method} {path}: no answer: {error!r}", status=None)
                delay = pause
            else:
                if reply.status < 400:
                    return reply
                trouble = _refusal(reply, f"{method} {path}")
                if reply.status not in BUSY:
                    raise trouble
                delay = reply.retry_after if reply.retry_after is not None else pause
            if time.monotonic() + delay >= deadline or self.pause(delay):
                raise trouble
            pause = min(pause * 2, PAUSE_SECONDS[1])

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str], silence: float) -> Iterator[Iterator[bytes] | None]:
        """Open a stream, over a connection of its own; its lines, or None where there is nothing to stream (204).

        Raises `ApiError`; OSError and HTTPException, while it is read too, also after `silence` seconds without a byte.
        """
        connection = self._new_connection()
        connection.timeout = silence
        try:
            connection.request("GET", self._parts.path.rstrip("/") + path, headers={**self._headers, **headers})
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(Reply(response.status, response.read(), None), f"GET {path}")
            yield None if response.status == 204 else iter(response.readline, b"")
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def pause(self, seconds: float) -> bool:
        """Wait; true at once when the client was closed meanwhile."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """Close all connections and end all pauses."""
        self._closed.set()
        with self._lock:
            connections = list(self._connections)
            self._connections.clear()
        for connection in connections:
            connection.close()

    def _once(self, method: str, target: str, data: bytes | None, wait: float) -> Reply:
        connection, kept = self._connection(wait)
        headers = self._headers if data is None else {**self._headers, "Content-Type": "application/json"}
        try:
            try:
                response = _exchange(connection, method, target, data, headers)
            except (ConnectionError, http.client.BadStatusLine):
                # The service closes connections that were idle for long: that says nothing about the service.
                if not kept:
                    raise
                connection.close()
                response = _exchange(connection, method, target, data, headers)
            body = response.read()
        except BaseException:
            # Half an answer is still on it.
            connection.close()
            raise
        after = response.headers.get("Retry-After", "")
        return Reply(response.status, body, float(after) if after.isdigit() else None)

    def _connection(self, wait: float) -> tuple[http.client.HTTPConnection, bool]:
        """This thread's connection, and whether it was in use before."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._new_connection()
        connection.timeout = wait + REPLY_SECONDS
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        return connection, connection.sock is not None

    def _new_connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port)
        with self._lock:
            self._connections.add(connection)
        return connection


def _exchange(
    connection: http.client.HTTPConnection, method: str, target: str, data: bytes | None, headers: dict[str, str]
) -> http.client.HTTPResponse:
    try:
        connection.request(method, target, body=data, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        # A body that is too large is refused before it is read: the answer stands there all the same.
        if connection.sock is None:
            raise
    return connection.getresponse()


def _refusal(reply: Reply, call: str) -> ApiError:
    try:
        problem = json.loads(reply.body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        return ApiError(f"{call}: HTTP {reply.status}", status=reply.status)
    error = ApiError("", status=reply.status, problem=problem)
    said = "; ".join(f"{field}: {message}" for field, message in list(error.fields.items())[:5])
    error.args = (f"{call}: HTTP {reply.status}: {said or problem.get('detail', 'no reason given')}",)
    return error
