"""A search service over HTTP, in the form that Tavily gave it: POST {query, max_results}, a bearer key; the reply is
{results: [{title, url, content}]}.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from prorl_celery.errors import SettingsError
from prorl_celery.search.base import Cancel, Found, Loop, QueryRefused, SearchError

TRIES = 4
"""Of one search, while the service is away, busy or ill; all within the caller's time."""
FIRST_WAIT_SECONDS = 0.5
REPLY_BYTES = 2 << 20
CLEANUP_SECONDS = 5.0
EXPLAINED_CHARACTERS = 200


class _Again(Exception):
    """Worth another try, after `wait_seconds` where the service said so."""

    def __init__(self, why: str, wait_seconds: float | None = None) -> None:
        super().__init__(why)
        self.wait_seconds = wait_seconds


class TavilySearch:
    """A `SearchBackend` at `url`. Raises `SettingsError` for what is no url. `key` is in no error's text."""

    def __init__(self, url: str, key: str, loop: Loop) -> None:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in {"http", "https"} and parts.hostname is not None and parts.username is None
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            sound = False
        if not sound:
            raise SettingsError(
                "PRORL_SEARCH_URL must be an http:// or https:// url without a user; PRORL_SEARCH_KEY is for keys"
            )
        self._url = url
        self._named = f"the search service at {parts.scheme}://{parts.hostname}{port}"
        self._key = key
        self._loop = loop

    def search(self, query: str, *, most: int, cancel: Cancel, timeout: float) -> list[Found]:
        return self._loop.call(
            lambda: self._search(query, most, timeout), cancel=cancel, timeout=timeout + CLEANUP_SECONDS
        )

    async def _search(self, query: str, most: int, timeout: float) -> list[Found]:
        until, last = time.monotonic() + timeout, "nothing was heard of it"
        try:
            async with asyncio.timeout(timeout):
                for number in range(TRIES):
                    try:
                        return self._read(await self._ask(query, most), most)
                    except _Again as again:
                        last = str(again)
                        wait = again.wait_seconds
                        if wait is None:
                            wait = FIRST_WAIT_SECONDS * 2**number
                        if number + 1 == TRIES or time.monotonic() + wait > until:
                            break
                    await asyncio.sleep(wait)
        except TimeoutError:
            last = f"{timeout:g} s were over; before that, {last}"
        raise SearchError(f"{self._named} failed: {last}")

    async def _ask(self, query: str, most: int) -> bytes:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        body = {"query": query, "max_results": most}
        try:
            # A redirect would carry the key to wherever it points.
            async with self._loop.session.post(
                self._url, json=body, headers=headers, allow_redirects=False
            ) as response:
                data = bytearray()
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > REPLY_BYTES:
                        response.close()
                        raise SearchError(f"{self._named} answered more than {REPLY_BYTES} bytes")
                self._check(response, bytes(data))
                return bytes(data)
        except (aiohttp.ClientError, OSError) as error:
            raise _Again(f"no answer ({type(error).__name__})") from error

    def _check(self, response: aiohttp.ClientResponse, data: bytes) -> None:
        status = response.status
        if 200 <= status < 300:
            return
        if status == 429 or status >= 500:
            raise _Again(f"it answered {status}", _retry_after(response.headers.get("Retry-After", "")))
        if status in {400, 413, 422}:
            raise QueryRefused(f"The search was refused: {self._said(data)}")
        hint = ": see PRORL_SEARCH_KEY" if status in {401, 403, 432, 433} else ""
        raise SearchError(f"{self._named} answered {status}{hint}")

    def _said(self, data: bytes) -> str:
        text = " ".join(data[:4096].decode("utf-8", "replace").split())
        text = text.replace(self._key, "***") if self._key else text
        return text[:EXPLAINED_CHARACTERS] or "no reason was given"

    def _read(self, data: bytes, most: int) -> list[Found]:
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SearchError(f"{self._named} answered what is not JSON") from error
        rows = reply.get("results") if isinstance(reply, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SearchError(f"{self._named} answered without a list of results")
        return [Found.of(_text(row, "title"), _text(row, "url"), _text(row, "content")) for row in rows[:most]]


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _retry_after(said: str) -> float | None:
    """Seconds to wait, given as such or as a date; None where nothing of the kind was said."""
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(said).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if seconds < float("inf") else None
