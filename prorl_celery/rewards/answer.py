"""What a reward server's answer says: a score, or why it is none."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from prorl_celery.depth import check_depth
from prorl_celery.errors import RewardRefused
from prorl_celery.rewards.parts import finite

NAMES = ("score", "reward")
LISTS = ("scores", "rewards")
SAID_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Score:
    """A score, and what else the server said: the other fields of its object."""

    score: float
    said: dict[str, Any] = field(default_factory=dict)


def read_score(data: bytes, server: str) -> Score:
    """The score in the body of a 2xx answer; `server` is what to call the server by.

    Taken are: a number; an object with a number as `score` (else `reward`), or with a list of one as `scores` (else
    `rewards`); a list of one of these. Raises `RewardRefused` for all else, such as text, true, NaN or infinity.
    """
    try:
        value = json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RewardRefused(f"{server} answered what is not JSON: {said(data)!r}") from error
    if isinstance(value, list):
        value = _only(value, server)
    if not isinstance(value, dict):
        return Score(_number(value, server))
    for name in (*NAMES, *LISTS):
        if name in value:
            found = value.pop(name)
            score = _number(_only(found, server) if name in LISTS else found, server)
            return Score(score, _plain(value, server))
    raise RewardRefused(f"{server} answered no score: {said(data)!r}")


def said(data: bytes) -> str:
    """The beginning of an answer, to be quoted."""
    return data[: 4 * SAID_CHARACTERS].decode("utf-8", "replace").strip()[:SAID_CHARACTERS]


def _only(values: Any, server: str) -> Any:
    if not isinstance(values, list) or len(values) != 1:
        what = f"{len(values)} scores" if isinstance(values, list) else f"{type(values).__name__} instead of a list"
        raise RewardRefused(f"{server} answered {what}, one was asked for")
    return values[0]


def _number(value: Any, server: str) -> float:
    number = finite(value)
    if number is None:
        raise RewardRefused(f"{server} answered a score that is no finite number: {str(value)[:SAID_CHARACTERS]!r}")
    return number


def _plain(value: dict[str, Any], server: str) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        check_depth(value)
    except (ValueError, RecursionError) as error:  # 1e999, half a surrogate pair, [[[...]]]
        raise RewardRefused(f"{server} answered what cannot be kept as JSON") from error
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
