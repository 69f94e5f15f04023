"""How deep JSON may nest that a result is to hold: whoever reads the result must be able to."""

from __future__ import annotations

from itertools import chain
from typing import Any

DEEPEST = 100
"""Levels of objects and lists. Pydantic, which writes and reads results, gives up beyond 200, a page of results around
it included; one result that cannot be written would stop all who read on behind it."""


def check_depth(value: Any) -> None:
    """Raises ValueError where objects and lists nest deeper than `DEEPEST` levels. The value must be a tree."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return
        level = list(chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level))
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")
