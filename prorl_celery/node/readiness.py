"""When a service is ready, by its own word: `/healthz` and `/readyz` asked over HTTP.

These block; they run in a process of their own, never in the supervisor.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from typing import Any

from prorl_celery.settings import Settings

API_READY_S = 60.0
ASK_TIMEOUT_S = 5.0

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Never through a proxy: what we ask is on this machine."""


def local_url(settings: Settings) -> str:
    """Where this machine reaches its own API."""
    host = settings.host
    if host in {"0.0.0.0", "::", ""}:
        host = "127.0.0.1" if host != "::" else "::1"
    try:
        bracket = ipaddress.ip_address(host).version == 6
    except ValueError:
        bracket = False
    return f"http://[{host}]:{settings.port}" if bracket else f"http://{host}:{settings.port}"


def answers(url: str) -> bool:
    """Whether a GET of `url` gives 200 now."""
    return ask(url)[0] == 200


def ask(url: str, *, token: str | None = None, body: Any = None, timeout: float = ASK_TIMEOUT_S) -> tuple[int, Any]:
    """GET `url` (POST with a `body`): the status, and the JSON it answered. Status 0: nobody answered within
    `timeout` seconds.
    """
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _DIRECT.open(request, timeout=timeout) as reply:
            return reply.status, _json(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _json(error.read())
    except (OSError, http.client.HTTPException):
        return 0, None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def missing(base_url: str) -> list[str]:
    """What `/readyz` says is missing; empty when jobs would run now."""
    status, reply = ask(base_url + "/readyz")
    if status == 200:
        return []
    said = reply.get("missing") if isinstance(reply, dict) else None
    return [str(item) for item in said] if isinstance(said, list) and said else ["the API does not answer"]


def is_about_backends(item: str) -> bool:
    """Whether a missing part is the backend: a service without one is up, its jobs wait."""
    return "backend" in item


def register_backend(base_url: str, backend: dict[str, Any], *, token: str | None = None) -> int:
    """Tell the API of a backend. Returns an exit code; what was wrong goes to stdout, which is a log."""
    status, reply = ask(base_url + "/v1/backends", token=token, body=backend)
    print(f"registering {backend['url']}: HTTP {status} {reply}", flush=True)
    return 0 if status in {200, 201} else 1
