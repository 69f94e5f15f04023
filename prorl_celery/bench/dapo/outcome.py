"""What filling one batch, or several in a row, came to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """Seconds are of the virtual clock. `wasted_s`: work on samples of which nothing was ever used, those of uniform
    groups left out: whoever filters has to roll them out.
    """

    seconds: float = 0.0
    wasted_s: float = 0.0
    uniform_s: float = 0.0
    groups: list[int] = field(default_factory=list)
    """Groups that each step got."""
    busy: list[tuple[float, int]] = field(default_factory=list)
    """When how many slots were in use, at each change."""
    won: list[int] = field(default_factory=list)
    """The prompts of the groups that counted."""
    uniform: int = 0
    """Groups that were filtered."""
    last_waste_s: float = 0.0
    """Of the last step's own."""
    worked_s: float = 0.0
    """All seconds that slots were in use: of groups that counted, of uniform ones, and wasted."""
