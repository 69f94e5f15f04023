"""Plain Python values as text, which is all that passes between the tests and the solution.

Numbers and containers of any subclass become plain ones; what is lazy becomes an iterator.
"""

from __future__ import annotations

import json
import types
from typing import Any

_LAZY: tuple[Any, ...] = (
    types.GeneratorType,
    map,
    filter,
    zip,
    reversed,
    type(iter([])),
    type({}.keys()),
    type({}.values()),
)
_CONTAINERS: tuple[tuple[Any, str], ...] = (
    (tuple, "tuple"),
    (set, "set"),
    (frozenset, "frozenset"),
    (_LAZY, "iterator"),
)
_MAKERS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "iterator": iter, "dict": dict}
LARGEST_PLAIN = 1 << 64


def dump(value: Any) -> str:
    """Raises `TypeError` for a value that is not plain, `RecursionError` for one that is too deep."""
    return json.dumps(_outward(value))


def load(text: str | bytes) -> Any:
    """Raises `ValueError`, `TypeError`, `KeyError`, `RecursionError` for what `dump` did not write."""
    return _inward(json.loads(text))


def _outward(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_PLAIN:
        return {"int": hex(value)}  # Python refuses to make thousands of digits, or to read them
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_outward(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[_outward(key), _outward(item)] for key, item in value.items()]}
    for kind, name in _CONTAINERS:
        if isinstance(value, kind):
            return {name: [_outward(item) for item in value]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if value is Ellipsis:
        return {"...": None}
    raise TypeError(f"{type(value).__name__} is no plain value")


def _inward(data: Any) -> Any:
    if isinstance(data, list):
        return [_inward(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((name, held),) = data.items()
    if name in _MAKERS:
        return _MAKERS[name](_inward(held))
    if name == "int":
        return int(held, 16)
    if name == "range":
        return range(*held)
    if name == "bytes":
        return bytes.fromhex(held)
    if name == "complex":
        return complex(*held)
    if name == "...":
        return ...
    raise ValueError(f"no such kind of value: {str(name)[:40]}")
