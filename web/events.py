"""`/v1/jobs/ID/events`: what happened to a job, as server-sent events: from the start, then as it happens, to its end.

Each event has the number of the store's as its id, so that a client that comes back with `Last-Event-ID` goes on where
it was. When there is nothing more to come the answer is 204, at which a browser's EventSource stops asking.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Response, request
from pydantic import Field
from pydantic_core import to_json

from prorl_celery.errors import ResultExpired, StoreUnavailable
from prorl_celery.jobs.claims import Event
from prorl_celery.jobs.models import TERMINAL
from web.contract import Query, operation
from web.jobs import BUSY, known_id
from web.problems import bad_field
from web.reading import read_query
from web.services import Services, services
from web.waiters import Watch

blueprint = Blueprint("events", __name__, url_prefix="/v1/jobs")

MEDIA_TYPE = "text/event-stream"

ALIVE_SECONDS = 15.0
"""A silent stream says so often that it is there, and finds out whether its reader still is."""

SUBSCRIBE_SECONDS = 5.0

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

FIELDS = {
    "queued": ("stage", ("state", "stage")),
    "running": ("stage", ("state", "stage")),
    "turn": ("turn", (None, "turn")),
    "call": ("tool_call", (None, "turn", "call")),
    "failed": ("attempt_failed", (None, "stage", "kind")),
    "ended": ("ended", (None, "state")),
}
"""First word of what the store noted -> the event's name and what its words are."""


class EventsQuery(Query):
    """From where on."""

    after: int | None = Field(
        None, ge=0, lt=2**53, description="number of the last event that is known; as the header Last-Event-ID"
    )


@blueprint.get("/<job_id>/events")
@operation(
    summary="A job's stage changes, turns and tool calls as server-sent events, from the start to its end",
    scope="read",
    query=EventsQuery,
    media=MEDIA_TYPE,
    answers={
        200: ("the events; with Retry-After it ends early, since too many wait already",),
        204: ("the job has ended, and nothing came after the last event that is known",),
    },
    errors=(404, 410, 422, 503),
)
def events(job_id: str) -> Response:
    after = _after(read_query(EventsQuery).after)
    used, name = services(), known_id(job_id)
    found, status = used.store.events(name, after or 0), used.store.status(name)
    if not found and status.state in TERMINAL:
        if not used.store.events(name):
            raise ResultExpired(f"the events of {name} are no longer kept", job_id=name)
        return Response(status=204)
    accepted = None
    if after is None and (not found or found[0].number == 1):
        # The store notes what happens to a job from then on.
        accepted = Event(0, status.created_at, "queued init")
    watch = used.waiters.watch(name, within=SUBSCRIBE_SECONDS)
    headers = HEADERS if watch is not None else {**HEADERS, **BUSY}
    response = Response(_stream(used, name, accepted, after or 0, watch), mimetype=MEDIA_TYPE, headers=headers)
    if watch is not None:
        # Not in the stream itself: one whose reader is gone before it begins would keep its place.
        response.call_on_close(lambda: _leave(used, watch))
    return response


def _leave(used: Services, watch: Watch) -> None:
    used.following.leave(watch)
    used.waiters.forget(watch)


def _after(asked: int | None) -> int | None:
    """The number that the query or the header names; the header counts for more, since a browser that comes back keeps
    the query.
    """
    header = request.headers.get("Last-Event-ID", "")
    if not header:
        return asked
    if not (header.isascii() and header.isdigit() and len(header) <= 15):
        raise bad_field("Last-Event-ID", "no id of an event")
    return int(header)


def _stream(used: Services, job_id: str, accepted: Event | None, after: int, watch: Watch | None) -> Iterator[bytes]:
    try:
        if accepted is not None:
            yield frame(accepted)
        if watch is not None:
            used.following.follow(watch, SUBSCRIBE_SECONDS)
        yield from _follow(used, job_id, after, watch)
    except StoreUnavailable:
        # The headers are sent: the client comes back by itself, and is told then.
        yield b": the store is out of reach\n\n"


def _follow(used: Services, job_id: str, after: int, watch: Watch | None) -> Iterator[bytes]:
    while True:
        for event in used.store.events(job_id, after):
            yield frame(event)
            after = event.number
            if event.what.startswith("ended "):
                return
        if watch is None or used.waiters.closed:
            return
        if not watch.wait(ALIVE_SECONDS):
            yield b": nothing new\n\n"
            if used.store.status(job_id).state in TERMINAL and not used.store.events(job_id, after):
                return


def frame(event: Event) -> bytes:
    """An event as it is sent."""
    name, data = told(event)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, name.encode(), to_json(data))


def told(event: Event) -> tuple[str, dict[str, Any]]:
    """An event's name, and what is told of it."""
    words = event.what.split(" ")
    name, fields = FIELDS.get(words[0], (words[0], (None, "stage")))
    data: dict[str, Any] = {"at": event.at}
    for field, word in zip(fields, words, strict=False):
        if field is not None:
            data[field] = int(word) if word.isdigit() else word
    return name, data
