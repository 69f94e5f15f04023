"""What an inference server says of itself: whether it is well, and how much of the prompts its cache held."""

from __future__ import annotations

import re
import time

import aiohttp

PROBE_SECONDS = 2.0
"""A server that says nothing for so long is not well."""
LATE_SECONDS = 1.0
"""When a time-out fires so much too late, it was us who were held up, and nothing is known of the server."""
METRICS_BYTES = 1 << 20

_COUNTER = re.compile(r"^vllm:prefix_cache_(queries|hits)(?:_total)?(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)


async def well(session: aiohttp.ClientSession, url: str) -> bool | None:
    """Whether the server answers its health check within `PROBE_SECONDS`; None when that cannot be said.

    A server without such a route answers 404, and answers. One that is busy (429, 503 with `Retry-After`) is well.
    """
    began = time.monotonic()
    try:
        async with session.get(_route(url, "/health"), timeout=_limit(), allow_redirects=False) as reply:
            return reply.status < 500 or (reply.status == 503 and "Retry-After" in reply.headers)
    except TimeoutError:
        return None if time.monotonic() - began > PROBE_SECONDS + LATE_SECONDS else False
    except (aiohttp.ClientError, OSError):
        return False


async def cache_hit_rate(session: aiohttp.ClientSession, url: str) -> float | None:
    """Part of the prompts' tokens that the server's prefix cache held since it started; None where it does not tell."""
    try:
        async with session.get(_route(url, "/metrics"), timeout=_limit(), allow_redirects=False) as reply:
            if reply.status != 200:
                return None
            text = (await reply.content.read(METRICS_BYTES)).decode("utf-8", "replace")
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    counted = {"queries": 0.0, "hits": 0.0}
    for name, value in _COUNTER.findall(text):
        try:
            counted[name] += float(value)
        except ValueError:
            return None
    rate = counted["hits"] / counted["queries"] if counted["queries"] > 0 else -1.0
    return round(rate, 3) if 0 <= rate <= 1 else None


def _route(url: str, path: str) -> str:
    return url.rstrip("/").removesuffix("/v1").rstrip("/") + path


def _limit() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=PROBE_SECONDS)
