"""Failures on demand: what the next generation calls should suffer.

Given: `{"mode": ..., "count": n}` or `{"mode": ..., "probability": p}` by `POST /scripted/fail`.
Gives: for each call the mode it suffers, or None.

    http500, http429   an error answer
    hang               no answer, until the caller goes away
    crash              as hang, and the server crashes when the caller goes away
    close              the connection closes without an answer
    html               200, and a page of HTML
    half_json          200, and JSON that stops in the middle
    no_ids             a right answer without token ids
    nan                a right answer whose log-probabilities are NaN
    slow               a right answer, `seconds` later than the latency model says (5)
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODES = ("http500", "http429", "hang", "crash", "close", "html", "half_json", "no_ids", "nan", "slow")


@dataclass(slots=True)
class Failure:
    """One order of failures; `count` is what is left of it, None for all calls."""

    mode: str
    count: int | None
    probability: float
    seconds: float


class Failures:
    """The orders in force. A newer order of the same mode replaces the older."""

    def __init__(self, seed: int = 0) -> None:
        self._orders: dict[str, Failure] = {}
        self._draw = random.Random(seed)

    def order(self, body: Mapping[str, Any]) -> None:
        """Take an order. Raises `ValueError` that says what is wrong with it."""
        if unknown := body.keys() - {"mode", "count", "probability", "seconds"}:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        mode, count, probability = body.get("mode"), body.get("count"), body.get("probability")
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}")
        if (count is None) == (probability is None):
            raise ValueError("give count or probability")
        if count is not None and (type(count) is not int or count < 0):
            raise ValueError("count must be a whole number")
        if probability is not None and not (isinstance(probability, int | float) and 0 <= probability <= 1):
            raise ValueError("probability must be between 0 and 1")
        chance = 1.0 if probability is None else float(probability)
        self._orders[mode] = Failure(mode, count, chance, float(body.get("seconds", 5.0)))

    def next(self) -> Failure | None:
        """What the call that just came suffers."""
        for mode, order in list(self._orders.items()):
            if order.count == 0:
                del self._orders[mode]
            elif order.probability >= 1 or self._draw.random() < order.probability:
                if order.count is not None:
                    order.count -= 1
                return order
        return None

    def clear(self) -> None:
        """Fail no more."""
        self._orders.clear()
