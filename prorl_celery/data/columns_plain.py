"""Values of tables as plain JSON: lists instead of arrays, and nothing that JSON does not know."""

from __future__ import annotations

import math
from typing import Any

from prorl_celery.errors import BadInstance


def plain(value: Any, field: str) -> Any:
    """The value as JSON. Raises `BadInstance` that names the field, and the place in it, of what has no JSON form:
    NaN and infinite numbers, bytes, times, decimals, keys that are no text, text that is no Unicode.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
                raise BadInstance("is text with half a surrogate pair, which is no Unicode", field=field)
            return value
        case float():
            if not math.isfinite(value):
                raise BadInstance(f"is {value}, which JSON does not know; leave it out, or null", field=field)
            return value
        case list() | tuple():
            return [plain(item, f"{field}.{index}") for index, item in enumerate(value)]
        case dict():
            below = f"{field}." if field else ""
            return {_key(name, field): plain(item, f"{below}{name}") for name, item in value.items()}
    if hasattr(value, "tolist"):  # of numpy: an array, or one of its numbers
        return plain(value.tolist(), field)
    raise BadInstance(f"is of type {type(value).__name__}, which has no form in JSON", field=field)


def _key(name: Any, field: str) -> str:
    if not isinstance(name, str):
        raise BadInstance(f"has a key that is no text: {str(name)[:80]}", field=field)
    return name
