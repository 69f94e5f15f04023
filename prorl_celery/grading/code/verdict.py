"""What a program was found to be worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["wrong answer", "time limit", "memory limit", "runtime error", "output limit", "not run"]
WHY_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a case failed."""

    case: int
    """Counted from 0."""
    kind: Kind
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of all cases."""

    passed: int
    """Cases that passed. Where the first failure ends it, those before."""
    of: int
    failure: Failure | None = None
    """The first."""

    def to_json(self, scoring: str) -> dict[str, Any]:
        """The fields of an eval: `scoring` is `all` (1.0 for all cases, else 0.0) or `fraction` (of those passed)."""
        resolved = self.failure is None and self.passed == self.of
        reward = self.passed / self.of if scoring == "fraction" else float(resolved)
        said: dict[str, Any] = {"reward": reward, "resolved": resolved, "passed": self.passed, "of": self.of}
        if self.failure is not None:
            said["failed"] = {"case": self.failure.case, "kind": self.failure.kind}
            said["why"] = f"case {self.failure.case}: {self.failure.kind}: {self.failure.why}"[:WHY_CHARS]
        return said
