"""Reads what a caller sent: JSON bodies and query strings, into models or into a problem that names each bad field.

JSON is read strictly: UTF-8, no NaN or Infinity, no lone surrogate, at most 200 levels deep, no fraction that a double
cannot hold, no compression. A body is read up to `PRORL_MAX_BODY` and no further.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

from flask import Flask, current_app, g, request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from werkzeug.exceptions import ClientDisconnected

from web.problems import FieldError, Problem, bad_fields, fields_of

Model = TypeVar("Model", bound=BaseModel)

PIECE_BYTES = 1 << 18

BIG_BYTES = 4 << 20
"""A body above this needs room: parsed, it takes some ten times its size, and hundreds of threads may hold one."""

BIG_BODIES = 4
"""Big bodies that one process holds at once; the others wait unread, in their senders' buffers."""

ROOM_SECONDS = 20.0
"""How long a big body waits for room."""

ROOM = "prorl.big_bodies"

_MAYBE_TOO_BIG = re.compile(rb"[0-9][eE]\+?[0-9]{2}|[0-9]{200}")
"""Bytes without a match hold no number that is too big for a double; so nearly all bodies are spared the walk."""


def read_json() -> tuple[bytes, Any]:
    """The request's body and the value it holds. Raises `Problem`: 400, 408, 413, 415 or 422."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise Problem(
            415, "unsupported-encoding", f"Content-Encoding {encoding[:40]!r} is not accepted: send plain JSON"
        )
    if request.mimetype != "application/json":
        raise Problem(415, "unsupported-media-type", "send the body as Content-Type: application/json")
    if request.mimetype_params.get("charset", "utf-8").lower().replace("_", "-") not in {"utf-8", "utf8", "us-ascii"}:
        raise Problem(415, "unsupported-charset", "JSON is UTF-8")
    body = _read_body()
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Problem(400, "bad-json", f"the body is not JSON: {error}") from error
    if _MAYBE_TOO_BIG.search(body) and (found := list(_too_big(value, ""))):
        raise bad_fields(found)
    return body, value


def _read_body() -> bytes:
    """All of the body. Raises `RequestEntityTooLarge` as soon as it is over the limit.

    Piece by piece, since one `read()` of werkzeug's cuts a chunked body at the limit in silence.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := request.stream.read(PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > BIG_BYTES and "holds_big_body" not in g:
                _wait_for_room()
    except ClientDisconnected as error:
        # Nobody may be there to read this; a peer that merely stalled is.
        raise Problem(408, "request-timeout", "the body stopped coming before its end") from error
    return b"".join(pieces)


def install(app: Flask) -> None:
    """Give each request's room for a big body back when it has ended, however it did."""
    app.extensions[ROOM] = threading.BoundedSemaphore(BIG_BODIES)

    @app.teardown_request
    def give_back(_: BaseException | None) -> None:
        if g.pop("holds_big_body", False):
            app.extensions[ROOM].release()


def _wait_for_room() -> None:
    if not current_app.extensions[ROOM].acquire(timeout=ROOM_SECONDS):
        raise Problem(503, "busy", "too many big bodies at once", retry_after=2)
    g.holds_big_body = True


def read_model(model: type[Model]) -> Model:
    """The request's body as a model. Raises `Problem`: as `read_json`, and 422 that names each bad field."""
    body, _ = read_json()
    return parse_model(model, body)


def parse_model(model: type[Model], body: bytes) -> Model:
    """A JSON body as a model, strictly: "5" is no number, true no 1. Raises `Problem` 422."""
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise bad_fields(fields_of(error)) from error


def read_query(model: type[Model]) -> Model:
    """The query string as a model. Raises `Problem` 422; a parameter given twice is a bad one."""
    twice = [name for name, values in request.args.lists() if len(values) > 1]
    if twice:
        raise bad_fields([FieldError(field=name, message="given more than once") for name in twice])
    try:
        return model.model_validate(request.args.to_dict())
    except ValidationError as error:
        raise bad_fields(fields_of(error)) from error


def _too_big(value: Any, path: str) -> Iterator[FieldError]:
    """Numbers that were read as infinite. Depth is bounded: the parser refuses more than 200 levels."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _too_big(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _too_big(item, f"{path}.{index}" if path else str(index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield FieldError(field=path, message="a number too big for a double")
