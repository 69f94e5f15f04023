"""Runs in an eval's sandbox: what a run tells of its tests, line by line.

A line begins with the run's token; one without was written by somebody else. Lines are JSON: the outcome of a phase of
a test, a file that could not be collected, what the probe found, and last `end` with what has changed meanwhile.
"""

from __future__ import annotations

import json
from typing import Any

MOST_MESSAGES = 200


class Told:
    """What was told so far."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._heard = b""
        self.facts: dict[str, Any] = {
            "messages": {}, "alien": [], "changed": [], "uncollected": [], "forged": 0, "ended": False,
            "no_pytest": None, "escaped": {},
        }  # fmt: skip
        self._phases: dict[str, dict[str, str]] = {}

    def hear(self, data: bytes) -> None:
        """Take in what was read from the pipe."""
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._note(line)

    def outcomes(self) -> dict[str, str]:
        """Of each test that was run to its end."""
        found = {name: outcome(phases) for name, phases in self._phases.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _note(self, line: bytes) -> None:
        facts = self.facts
        token = self._token
        if facts["ended"]:
            return
        try:
            told = json.loads(line[len(token) :]) if line.startswith(token) else None
            if not isinstance(told, dict):
                raise TypeError("no object")
            self._note_told(told)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            facts["forged"] += 1

    def _note_told(self, told: dict[str, Any]) -> None:
        """Raises what Python raises where something in it is other than the runner's."""
        facts = self.facts
        if "id" in told:
            self._note_phase(told)
        elif "end" in told:
            facts.update(ended=True, code=told["end"], changed=told["changed"][:20])
        elif "alien" in told:
            facts["alien"] = [*facts["alien"], told["alien"]][:20]
        elif "uncollected" in told:
            facts["uncollected"] = [*facts["uncollected"], told["message"]][:5]
        elif "no_pytest" in told:
            facts["no_pytest"] = told["no_pytest"]

    def _note_phase(self, told: dict[str, Any]) -> None:
        for name in {told["id"], told["also"]}:
            phases = self._phases.setdefault(name, {})
            if told.get("escaped"):
                self.facts["escaped"][name] = told["escaped"][0]
            outcome = told["outcome"]
            if outcome == "rerun":
                phases.clear()
                continue
            if outcome == "skipped" and told["xfail"]:
                outcome = "xfailed"
            elif outcome == "passed" and told["xfail"]:
                outcome = "xpassed"
            if phases.get(told["when"]) != "failed":
                phases[told["when"]] = outcome
            if outcome == "failed" and len(self.facts["messages"]) < MOST_MESSAGES:
                self.facts["messages"].setdefault(name, told.get("message", ""))


def outcome(phases: dict[str, str]) -> str | None:
    """A test's outcome from those of its phases; None where it did not get to its end."""
    values = set(phases.values())
    for bad in ("failed", "xfailed", "skipped", "xpassed"):
        if bad in values:
            return bad
    return "passed" if set(phases) == {"setup", "call", "teardown"} and values == {"passed"} else None
