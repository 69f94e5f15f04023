"""The pairs of key and reply in `math_pairs.txt`: what the rules of `prorl_celery.grading.math` mean, in examples."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    """A reply is a last text."""

    right: bool
    key: str
    reply: str
    problem: str


def pairs() -> list[Pair]:
    lines = Path(__file__).with_name("math_pairs.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [Pair(row[0] == "right", row[1], row[2].replace("⏎", "\n"), "".join(row[3:])) for row in rows]
