"""Runs in an eval's sandbox, used by control forms: equality that notices what is equal to everything."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

PLAIN = (str, bytes, int, float, bool, complex, type(None), list, tuple, dict, set, frozenset)

report: list[Callable[[str], None]] = []
"""Whom to tell; filled in by the runner."""


escaped: list[str] = []
"""By what the running test's body ended; emptied by the runner."""
RUNNERS = ("unittest", "_pytest", "pytest")


def ended(error: BaseException) -> None:
    """A test's body ended by an exception; noted where a test runner may take it for something else than a failure."""
    kind = type(error)
    if any(base.__module__.partition(".")[0] in RUNNERS for base in kind.__mro__):
        escaped.append(kind.__name__)


def equal(left: Any, right: Any) -> Any:
    """`left == right`, told on when it would be true of any other value as well."""
    found = left == right
    try:
        suspect = bool(found) and (_everything(left, right) or _everything(right, left))
    except Exception:  # noqa: BLE001 - whatever a comparison raises, it is no answer of yes
        suspect = False
    if suspect:
        for tell in report:
            tell(f"{type(left).__name__} == {type(right).__name__}")
    return found


def _everything(one: Any, other: Any) -> bool:
    """Whether `one`, which is no plain value, also equals a plain one that `other` is not."""
    if type(one) in PLAIN or one is other or one is getattr(sys.modules.get("unittest.mock"), "ANY", _unlike):
        return False
    return bool(one == _unlike(other)) or (bool(one == object()) and bool(one == os.urandom(8).hex()))


def _unlike(value: Any) -> Any:
    """Something of the same plain type as a value, and unequal to it; of no such type, something like nothing."""
    if type(value) in (str, bytes):
        more = os.urandom(8).hex()
        return value + (more if isinstance(value, str) else more.encode())
    if type(value) in (int, float):
        return value + 1 + int.from_bytes(os.urandom(2), "big")
    if type(value) in (list, tuple):
        return value + type(value)([object()])
    if type(value) is dict:
        return {**value, object(): 0}
    if type(value) in (set, frozenset):
        return value | {object()}
    return object()
