"""How much of everything a run does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Counts and times. The defaults are those that the figures' names stand for."""

    rounds: int = 3
    """Repetitions of what takes turns, and of the toy job's 64."""
    noops: int = 1000
    counted: tuple[int, ...] = (100, 10_000)

    stage_s: tuple[float, float, float] = (1.0, 4.0, 2.0)
    stage_slots: tuple[int, int, int] = (4, 16, 8)
    waits: int = 112

    toys: int = 64
    steady: int = 640
    alone: int = 10
    model_s: float = 0.2
    cancels: int = 64

    crowd: int = 256
    crowd_turns: int = 30
    crowd_model_s: float = 1.0

    commands: int = 1000
    swerex_commands: int = 50
    starts: int = 20


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    noops=300,
    counted=(100, 2000),
    stage_s=(0.25, 1.0, 0.5),
    waits=56,
    steady=192,
    alone=3,
    cancels=16,
    crowd_turns=15,
    commands=300,
    swerex_commands=10,
    starts=5,
)
"""For a look: rough figures within two minutes."""
