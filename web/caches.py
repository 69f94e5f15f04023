"""Tells inference servers whose calls carry no cache salt to forget what they cached, since their weights are others.

A salt keeps the caches of two versions apart (`llm/gate.py`); the legacy form and servers that are not vLLM know none.
"""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from prorl_celery.scheduling.backends import Backend

PATH = "/reset_prefix_cache"
RESET_SECONDS = 3.0
"""A server takes milliseconds; one that takes this long is told of in the answer."""
AT_ONCE = 16


def takes_no_salt(backend: Backend) -> bool:
    """Whether calls to this backend cannot say under which weights something was cached."""
    return backend.kind == "legacy" or (backend.kind == "chat" and not backend.gives_ids)


def reset_caches(backends: Sequence[Backend]) -> list[str]:
    """Have those that take no salt forget their prefixes; the urls of those that did not say that they have."""
    asked = [backend for backend in backends if takes_no_salt(backend) and backend.state != "down"]
    if not asked:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(asked))) as pool:
        return sorted(b.url for b, done in zip(asked, pool.map(_reset, asked), strict=True) if not done)


def _reset(backend: Backend) -> bool:
    parts = urlsplit(backend.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Connection": "close", "Content-Length": "0"}
    if backend.api_key:
        headers["Authorization"] = f"Bearer {backend.api_key}"
    connection = kind(parts.hostname or "", parts.port, timeout=RESET_SECONDS)
    try:
        connection.request("POST", parts.path.removesuffix("/v1") + PATH, headers=headers)
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
