"""What every wire form shares: what is asked, what comes back, one POST, and when a POST is repeated.

A call is repeated only while it is certain that nothing was sampled for it: no connection, a connection that ended
before a reply, 429, or a 5xx. After a 2xx nothing is repeated here, whatever is wrong with it. Time is bounded by the
caller (`ModelLoop.call`), tries by the constants below.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import random
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from prorl_celery.errors import BackendError, BackendGone, ContextOverflow
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.endpoint import Endpoint

T = TypeVar("T")

FAULT_TRIES = 5
"""Tries while the backend is away or answers 5xx: about 3 s in all."""
BUSY_TRIES = 120
"""Tries while it says that it is busy and when to come again."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 30.0
LEAST_BUSY_WAIT_SECONDS = 2.0
"""What the pauses grow to where a busy backend wishes for less."""
REPLY_BYTES = 1 << 20
REPLY_BYTES_PER_ID = 256
"""A sampled token in a reply is its id, its log-probability and its text, escaped: about 40 bytes."""
_TOO_LONG = (
    "context length",
    "max_model_len",
    "maximum model length",
    "context_length_exceeded",
    "context window",
    "context size",
)
_EXPLAINED_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """One call of token mode. `prompt_json` is `prompt_ids` as JSON numbers between commas."""

    prompt_ids: array[int]
    prompt_json: str
    max_tokens: int
    sampling: SamplingParams
    seed: int | None
    request_id: str
    vocab_size: int
    """An id at or above this is nonsense."""
    cache_salt: str | None = None
    """Keeps what the engine caches apart from what it cached under other weights; None sends none."""
    stop_ids: frozenset[int] = frozenset()
    """What ends a turn: a wire that does not say why a reply ended lets its last id tell."""

    @property
    def limit_bytes(self) -> int:
        """Longest reply there can be an honest reason for, the echoed prompt included."""
        return REPLY_BYTES + REPLY_BYTES_PER_ID * self.max_tokens + 16 * len(self.prompt_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What one call sampled. `versions` is None where the wire does not tell the weights' version."""

    ids: array[int]
    logprobs: array[float]
    finish_reason: str
    seconds: float
    versions: array[int] | None = None
    cached_tokens: int | None = None


class Busy(Exception):
    """The backend could not take the call; `wait_seconds` is its own wish, where it said one."""

    def __init__(self, error: BackendError, wait_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_seconds = wait_seconds


async def repeated(attempt: Callable[[], Awaitable[T]], *, pause_first: bool = False) -> T:
    """`attempt()`, again after a pause for as long as it raises `Busy`. Raises the last try's `BackendError`."""
    if pause_first:
        await asyncio.sleep(FIRST_WAIT_SECONDS)
    faults = waits = 0
    while True:
        try:
            return await attempt()
        except Busy as busy:
            if busy.wait_seconds is None:
                faults += 1
                pause = FIRST_WAIT_SECONDS * 2 ** (faults - 1) * random.uniform(0.75, 1.25)
            else:
                waits += 1
                # One that says "at once" and stays busy is asked less and less often, not 120 times within a second.
                least = min(FIRST_WAIT_SECONDS * 2 ** min(waits - 1, 10), LEAST_BUSY_WAIT_SECONDS)
                pause = max(busy.wait_seconds * random.uniform(1.0, 1.1), least * random.uniform(0.75, 1.25))
            if faults >= FAULT_TRIES or waits >= BUSY_TRIES:
                raise busy.error from busy
        await asyncio.sleep(min(pause, LONGEST_WAIT_SECONDS))


async def ask(
    session: aiohttp.ClientSession, endpoint: Endpoint, path: str, body: bytes, request: TokenRequest
) -> tuple[bytes, float]:
    """One call of token mode: the reply's body, and the seconds it took. Raises as `post`."""
    started = time.monotonic()
    data = await post(session, endpoint, path, body, request_id=request.request_id, limit_bytes=request.limit_bytes)
    return data, time.monotonic() - started


async def post(
    session: aiohttp.ClientSession, endpoint: Endpoint, path: str, body: bytes, *, request_id: str, limit_bytes: int
) -> bytes:
    """One POST; the body of a 2xx reply.

    Raises: `Busy` when it may be repeated, `ContextOverflow` when the backend finds the prompt too long, `BackendGone`
    when the reply broke off, else `BackendError`.
    """
    url = endpoint.base + path
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id, **endpoint.headers}
    try:
        response = await session.post(url, data=body, headers=headers, allow_redirects=False)
    except (aiohttp.ClientError, OSError) as error:
        raise Busy(BackendGone(f"{url} did not answer: {_named(error)}", url=endpoint.url)) from error
    async with response:
        try:
            data = await _bounded(response, limit_bytes)
        except (aiohttp.ClientError, OSError) as error:
            broken = BackendGone(f"{url} broke off its reply: {_named(error)}", url=endpoint.url)
            raise broken from error
        if data is None:
            raise BackendError(f"{url} answered more than {limit_bytes} bytes", url=endpoint.url)
        if not 200 <= response.status < 300:
            raise refusal(endpoint, path, response.status, response.headers, data)
        return data


async def _bounded(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes | None:
    """The whole body, or None when it is longer than allowed (the connection is then closed)."""
    if (response.content_length or 0) > limit_bytes:
        response.close()
        return None
    if response.content_length is not None and "Content-Encoding" not in response.headers:
        return await response.read()
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit_bytes:
            response.close()
            return None
    return bytes(data)


def refusal(
    endpoint: Endpoint, path: str, status: int, headers: Mapping[str, str], data: bytes
) -> Busy | BackendError | ContextOverflow:
    """What to raise for a reply that is not 2xx."""
    text = data[:4096].decode("utf-8", "replace").strip()
    said = text[:_EXPLAINED_CHARS]
    message, wait = f"{endpoint.base}{path} answered {status}: {said}", _retry_after(headers)
    error = BackendError(message, url=endpoint.url)
    if status >= 500 and wait is None:
        return Busy(BackendGone(message, url=endpoint.url))
    if status == 429 or status >= 500:
        return Busy(error, wait)
    if status in {400, 413, 422} and any(hint in text.lower() for hint in _TOO_LONG):
        return ContextOverflow(f"the backend finds the prompt too long: {said}")
    return error


def read_json(endpoint: Endpoint, data: bytes) -> dict[str, Any]:
    """The reply as a JSON object. Raises `BackendError`, also for an error body sent with 200."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        said = data[:80].decode("utf-8", "replace")
        raise BackendError(f"{endpoint.base} answered what is not JSON: {said!r}", url=endpoint.url) from error
    if not isinstance(value, dict):
        raise BackendError(f"{endpoint.base} answered JSON that is not an object", url=endpoint.url)
    if value.get("error"):
        said = json.dumps(value["error"])[:_EXPLAINED_CHARS]
        raise BackendError(f"{endpoint.base} answered an error with status 200: {said}", url=endpoint.url)
    return value


def only_choice(endpoint: Endpoint, reply: Mapping[str, Any]) -> dict[str, Any]:
    """The reply's one choice. Raises `BackendError`."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BackendError(f"{endpoint.base} answered without exactly one choice", url=endpoint.url)
    return choices[0]


def finish_reason_of(endpoint: Endpoint, choice: Mapping[str, Any]) -> str:
    """Why the choice ended. Raises `BackendError` when it does not say."""
    finish_reason = choice.get("finish_reason")
    if not isinstance(finish_reason, str) or not finish_reason:
        raise BackendError(f"{endpoint.base} answered no finish reason", url=endpoint.url)
    return finish_reason


def checked_sample(
    endpoint: Endpoint, request: TokenRequest, ids: Any, logprobs: Any, finish_reason: str | None
) -> tuple[array[int], array[float], str]:
    """The sampled ids, their log-probabilities, and why the reply ended (None: as its length and last id tell).

    Raises `BackendError` for ids or log-probabilities that are none, more ids than were allowed, and an empty reply
    that was not aborted.
    """
    sampled = checked_ids(endpoint, ids, request.vocab_size, "sampled ids")
    if len(sampled) > request.max_tokens:
        said = f"{endpoint.base} sampled {len(sampled)} ids, {request.max_tokens} allowed"
        raise BackendError(said, url=endpoint.url)
    if finish_reason is None:
        full = len(sampled) == request.max_tokens and sampled[-1] not in request.stop_ids
        finish_reason = "length" if full else "stop"
    if not sampled and finish_reason != "abort":
        raise BackendError(f"{endpoint.base} sampled nothing ({finish_reason})", url=endpoint.url)
    return sampled, checked_logprobs(endpoint, logprobs if sampled else [], len(sampled)), finish_reason


def cached_tokens(reply: Mapping[str, Any]) -> int | None:
    """How many of the prompt's tokens came from the prefix cache, where the backend tells."""
    usage = reply.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None


def checked_ids(endpoint: Endpoint, values: Any, vocab_size: int | None, what: str) -> array[int]:
    """A list of token ids as int32. Raises `BackendError` for anything else."""
    if not isinstance(values, list):
        raise BackendError(f"{endpoint.base} answered no {what}", url=endpoint.url)
    try:
        ids = array("i", values)
    except (TypeError, OverflowError) as error:
        raise BackendError(f"{endpoint.base} answered {what} that are not token ids", url=endpoint.url) from error
    if ids and (min(ids) < 0 or (vocab_size is not None and max(ids) >= vocab_size)):
        raise BackendError(f"{endpoint.base} answered {what} outside the vocabulary", url=endpoint.url)
    return ids


def checked_logprobs(endpoint: Endpoint, values: Any, count: int) -> array[float]:
    """One log-probability per sampled id, as float32. Raises `BackendError` for wrong lengths and NaN."""
    if not isinstance(values, list):
        raise BackendError(f"{endpoint.base} answered no log-probabilities", url=endpoint.url)
    if len(values) != count:
        raise BackendError(
            f"{endpoint.base} answered {count} ids and {len(values)} log-probabilities", url=endpoint.url
        )
    try:
        logprobs = array("f", values)
    except (TypeError, OverflowError) as error:
        raise BackendError(
            f"{endpoint.base} answered log-probabilities that are not numbers", url=endpoint.url
        ) from error
    if not all(math.isfinite(value) and value <= 0.001 for value in logprobs):
        raise BackendError(
            f"{endpoint.base} answered log-probabilities that are none (NaN, infinite or above 0)", url=endpoint.url
        )
    return logprobs


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, given as such or as a date; None where there is nothing of the kind."""
    said = headers.get("Retry-After", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            return None
    return min(seconds, LONGEST_WAIT_SECONDS) if seconds >= 0 and math.isfinite(seconds) else None


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
