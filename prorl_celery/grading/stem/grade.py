"""What a reply is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Grade:
    """`why` says what is wrong with a wrong answer; `answered` is what was read in the reply."""

    right: bool
    why: str | None = None
    answered: str | None = None

    def as_eval(self) -> dict[str, Any]:
        """What eval returns."""
        return {
            "reward": float(self.right),
            "resolved": self.right,
            "why": self.why,
            "answered": None if self.answered is None else self.answered[:200],
        }


def wrong(why: str, answered: str | None = None) -> Grade:
    """A wrong answer."""
    return Grade(False, why, answered)


NO_ANSWER = wrong("there is no answer in the reply")
