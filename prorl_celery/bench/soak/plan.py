"""How much a soak does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Counts and times, in seconds."""

    jobs: int = 2000
    kill_every: float = 3.0
    seed: int = 1
    window: int = 96
    """Jobs under way at once: more than there are rollout slots, few enough that a queue is no measure of recovery."""
    backends: int = 2
    """Of each of the two models."""
    model_s: float = 0.4
    """Mean time of a model call; they vary."""
    backend_down_s: tuple[float, float] = (2.0, 5.0)
    """How long a killed backend stays away."""
    calm_share: float = 0.95
    """The kills end when so many of the jobs have ended: one that is alone in its process when that dies is charged."""

    @property
    def limit_s(self) -> float:
        """After this it is given up, and what was found by then is told."""
        return 300.0 + self.jobs * 0.6
