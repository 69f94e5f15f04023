"""Asking a reward server: one POST of `{solution_str, ground_truth, data_source}`, repeated while that may help.

Repeated are: no connection, a broken or late reply, 429 and 5xx; with the server's `Retry-After` where it gives one.
Scoring changes nothing at the server, so nothing is lost by asking twice. Redirects are not followed, and no proxy of
the environment is used. Runs on the process's model loop: to cancel the task closes the connection.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import random
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from prorl_celery.errors import RewardRefused, RewardUnavailable
from prorl_celery.rewards.answer import Score, read_score, said
from prorl_celery.rewards.servers import RewardServer, RewardServers
from prorl_celery.rewards.urls import shown

ANSWER_BYTES = 256 << 10
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 30.0
CONNECT_SECONDS = 10.0
LEAST_CALL_SECONDS = 0.05
"""Where no time is left: 0 would be none at all to aiohttp."""


class _Fault(Exception):
    """No score, and another call may give one; `wait_seconds` is the server's own wish, where it said one."""

    def __init__(self, message: str, wait_seconds: float | None = None) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


def body_of(solution: str, ground_truth: Any, data_source: str) -> bytes:
    """What is posted. Raises TypeError or ValueError for a ground truth that is not JSON."""
    body = {"solution_str": solution, "ground_truth": ground_truth, "data_source": data_source}
    return json.dumps(body, allow_nan=False).encode()


async def score(
    session: aiohttp.ClientSession,
    servers: RewardServers,
    url: str,
    body: bytes,
    *,
    seconds: float,
    call_seconds: float,
) -> Score:
    """The server's score. `seconds` bounds all calls and pauses together, `call_seconds` one call.

    Raises: `RewardUnavailable` when there is none by then, `RewardRefused` when none will come.
    """
    server, name = servers.at(url), shown(url)
    until = time.monotonic() + seconds
    tries = 0
    why = "it is held off, since other jobs' calls failed"
    while True:
        try:
            async with server.place(until):
                tries += 1
                left = max(LEAST_CALL_SECONDS, until - time.monotonic())
                return await _counted(server, session, url, body, min(call_seconds, left))
        except _Fault as fault:
            why, wish = str(fault), fault.wait_seconds
        except TimeoutError:  # held off all the time
            wish = None
        pause = FIRST_WAIT_SECONDS * 2 ** min(tries, 10) * random.uniform(0.375, 0.625)
        pause = min(max(pause, wish or 0.0), LONGEST_WAIT_SECONDS)
        if pause >= until - time.monotonic():
            raise RewardUnavailable(f"{name} gave no score within {seconds:.1f} s, asked {tries} times: {why}")
        await asyncio.sleep(pause)


async def _counted(
    server: RewardServer, session: aiohttp.ClientSession, url: str, body: bytes, call_seconds: float
) -> Score:
    began = time.monotonic()
    outcome = None
    try:
        found = await _ask(session, url, body, call_seconds)
        outcome = "scored"
    except _Fault as fault:
        outcome = "failed" if fault.wait_seconds is None else "busy"
        raise
    except RewardRefused:
        outcome = "refused"
        raise
    finally:
        if outcome is not None:  # else cancelled: nothing is known
            server.count(outcome, time.monotonic() - began)
    return found


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes, call_seconds: float) -> Score:
    """One call. Raises: `_Fault`, `RewardRefused`."""
    name = shown(url)
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    timeout = aiohttp.ClientTimeout(total=call_seconds, sock_connect=CONNECT_SECONDS)
    try:
        async with session.post(url, data=body, headers=headers, allow_redirects=False, timeout=timeout) as response:
            data = await _bounded(response)
    except (aiohttp.InvalidURL, UnicodeError) as error:  # the latter: a label of the host is empty or too long
        raise RewardRefused(f"{name} is no url that can be asked") from error
    except TimeoutError as error:
        raise _Fault(f"no answer within {call_seconds:.1f} s") from error
    except (aiohttp.ClientError, OSError) as error:
        # Not its whole text, which may have the url.
        raise _Fault(f"no answer: {getattr(error, 'strerror', None) or type(error).__name__}") from error
    if data is None:
        raise RewardRefused(f"{name} answered more than {ANSWER_BYTES} bytes")
    status = response.status
    if 200 <= status < 300:
        return read_score(data, name)
    if 300 <= status < 400:
        raise RewardRefused(f"{name} answered {status}, and redirects are not followed: name the address itself")
    if status in {408, 429} or status >= 500:
        raise _Fault(f"it answered {status}: {said(data)}", _retry_after(response.headers, busy=status == 429))
    raise RewardRefused(f"{name} answered {status}: {said(data)}")


async def _bounded(response: aiohttp.ClientResponse) -> bytes | None:
    """The whole body, or None when it is longer than allowed (the connection is then closed)."""
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > ANSWER_BYTES:
            response.close()
            return None
    return bytes(data)


def _retry_after(headers: Mapping[str, str], *, busy: bool) -> float | None:
    """Seconds to wait, given as such or as a date; where neither is there, 0 for a busy server, else None."""
    text = headers.get("Retry-After", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            seconds = math.nan
    return seconds if math.isfinite(seconds) and seconds >= 0 else 0.0 if busy else None
