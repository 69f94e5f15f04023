"""Writes answers: a model as JSON, and a big result as a stream.

A trajectory of a million tokens is some 30 MB of JSON. It is written piece by piece, so that an answer costs the memory
of a piece and not a second copy of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from flask import Response
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from prorl_celery.jobs.models import Result

PIECE = 16_384
"""Numbers of a token array in one piece of a stream."""

STREAM_FROM = 65_536
"""Response tokens from which a result is streamed rather than written at once."""

_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: a model or a handler can make one, and no UTF-8 can hold it."""


def as_json(value: Any) -> bytes:
    """JSON. Numbers that it lacks (NaN) are null, characters that it cannot hold are U+FFFD."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        return to_json(_sound(value), inf_nan_mode="null")


def _sound(value: Any) -> Any:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, str):
        return _HALF.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {_sound(key): _sound(item) for key, item in value.items()}
    return [_sound(item) for item in value] if isinstance(value, list | tuple) else value


def answer(
    body: BaseModel | Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer, which ends its line: it is also read in terminals."""
    return Response(as_json(body) + b"\n", status=status, mimetype="application/json", headers=headers)


def result_answer(result: Result) -> Response:
    """One result, streamed when it is big."""
    if sum(len(segment.response_ids) + len(segment.prompt_ids) for segment in result.segments) < STREAM_FROM:
        return answer(result)
    return Response(chain(result_pieces(result), [b"\n"]), mimetype="application/json")


def results_answer(results: Iterable[Result], tail: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    """`{"results": [...], ...tail}` as a stream; each result is written when its turn comes."""

    def pieces() -> Iterator[bytes]:
        yield b'{"results":['
        for index, result in enumerate(results):
            if index:
                yield b","
            yield from result_pieces(result)
        yield b"]," + to_json(tail)[1:] + b"\n"

    return Response(pieces(), mimetype="application/json", headers=headers)


def result_pieces(result: Result) -> Iterator[bytes]:
    """A result's JSON in pieces; joined, they are what `model_dump_json` gives."""
    yield from _object_pieces(result, nested=frozenset({"segments"}))


def _object_pieces(model: BaseModel, nested: frozenset[str]) -> Iterator[bytes]:
    opener = b"{"
    for name, value in model:
        yield opener + to_json(name) + b":"
        opener = b","
        if name in nested:
            yield b"["
            for index, item in enumerate(value):
                if index:
                    yield b","
                yield from _object_pieces(item, frozenset())
            yield b"]"
        elif isinstance(value, list) and len(value) > PIECE:
            yield from _list_pieces(value)
        else:
            yield as_json(value)
    yield b"}"


def _list_pieces(values: list[Any]) -> Iterator[bytes]:
    for start in range(0, len(values), PIECE):
        yield (b"," if start else b"[") + to_json(values[start : start + PIECE], inf_nan_mode="null")[1:-1]
    yield b"]"
