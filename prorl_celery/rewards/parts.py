"""Named parts of a reward: what a handler, or the shaping, says it is made of. They need not add up to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prorl_celery.errors import EvalError

MOST_PARTS = 64
LONGEST_NAME = 64
OURS = frozenset({"overlong", "repetition"})
"""Names of the shaping's own parts."""


def finite(value: Any) -> float | None:
    """The number that it is; None for all that is no finite number, for true and false too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def checked_parts(verdict: Mapping[str, Any]) -> dict[str, float]:
    """The `reward_parts` of what an eval returned, all as floats; none where it names none.

    Raises `EvalError` that says which part is wrong: a name that is empty, long, unprintable or one of `OURS`, a value
    that is no finite number, more than `MOST_PARTS`.
    """
    parts = verdict.get("reward_parts")
    if parts is None:
        return {}
    if not isinstance(parts, dict):
        raise EvalError(f"eval's reward_parts must be an object of numbers, not {type(parts).__name__}")
    if len(parts) > MOST_PARTS:
        raise EvalError(f"eval's reward_parts are {len(parts)}, {MOST_PARTS} allowed")
    checked = {}
    for name, value in parts.items():
        if not (0 < len(name) <= LONGEST_NAME and name.isprintable()):
            raise EvalError(f"eval's reward_parts: {name[:80]!r} is no name: 1 to {LONGEST_NAME} printable characters")
        if name in OURS:
            raise EvalError(f"eval's reward_parts: {name!r} is what the reward shaping calls its own part")
        number = finite(value)
        if number is None:
            raise EvalError(f"eval's reward_parts: {name!r} must be a finite number, not {str(value)[:80]}")
        checked[name] = number
    return checked
