"""A job's events as the service streams them: from the start, to the job's end, over any number of connections."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from prorl_celery.client.transport import Transport
from prorl_celery.errors import ApiError, ApiUnavailable

SILENCE_SECONDS = 30.0
"""The service says every 15 s that it is there."""

PAUSE_SECONDS = 1.0
"""Before a stream that broke off, or that the service had no room for, is opened again."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job. `name`: stage, turn, tool_call, lost, handed_back, attempt_failed, stalled,
    cancel_requested, retried or ended; `data` tells of what, and `at` when.
    """

    number: int
    name: str
    data: dict[str, Any] = field(default_factory=dict)


def follow(http_: Transport, path: str, *, after: int | None, timeout: float) -> Iterator[JobEvent]:
    """The events of a path. Raises `ApiError` where the service refuses, TimeoutError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    known = after
    while (left := deadline - time.monotonic()) > 0:
        headers = {} if known is None else {"Last-Event-ID": str(known)}
        try:
            with http_.stream(path, headers, min(left, SILENCE_SECONDS)) as lines:
                if lines is None:
                    return
                for event in parse(lines):
                    yield event
                    known = event.number
                    if event.name == "ended":
                        return
                    if time.monotonic() >= deadline:
                        break
        except (OSError, http.client.HTTPException):
            pass  # broken off, or silent: it is opened again behind what is known
        except ApiError as error:
            if error.status not in (429, 503) and not isinstance(error, ApiUnavailable):
                raise
        if http_.pause(min(PAUSE_SECONDS, max(0.0, deadline - time.monotonic()))):
            raise ApiError("the client was closed", status=None)
    raise TimeoutError(f"{path} did not end within {timeout:g} s")


def parse(lines: Iterator[bytes]) -> Iterator[JobEvent]:
    """The events of a stream of lines; comments are left out."""
    fields: dict[str, str] = {}
    for line in lines:
        text = line.decode().rstrip("\r\n")
        if text.startswith(":"):
            continue
        if text:
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            yield JobEvent(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            fields = {}
