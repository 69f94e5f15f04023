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
    """How often `true` through each terminal that is held open; other commands a fifth of it."""
    subprocess_commands: int = 100
    container_commands: int = 20
    """One container for each command."""
    swerex_commands: int = 50
    tmux_commands: int = 8
    slow_output_s: float = 60.0
    """How long SWE-ReX and tmux may take for ten megabytes; 0: they are not given any."""
    starts: int = 20
    at_once: int = 16
    bursts: int = 3
    """How often so many sandboxes at once."""
    cells: int = 300
    gateway_cells: int = 50
    first_cells: int = 10
    """Kernels of which the first cell is timed."""

    balanced: int = 20_000
    """Jobs that are given backends in virtual time, after a warm-up of a thousand."""
    acquires: int = 20_000
    calls: int = 500
    """Of each kind, one after another."""
    calls_at_once: int = 2000

    dapo_seeds: int = 30
    dapo_ten_step_seeds: int = 30
    dapo_prompts: tuple[int, ...] = (100, 10_000)

    kinds_s: float = 5.0
    """How long each kind is graded, and how long two ways take turns."""
    many_cases: int = 10_000
    """Of one problem."""
    asked: int = 300
    """Calls of a judge."""


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
    subprocess_commands=30,
    container_commands=5,
    swerex_commands=10,
    tmux_commands=2,
    slow_output_s=0.0,
    starts=5,
    bursts=1,
    cells=100,
    gateway_cells=20,
    first_cells=3,
    balanced=4000,
    acquires=4000,
    calls=100,
    calls_at_once=400,
    dapo_seeds=5,
    dapo_ten_step_seeds=2,
    kinds_s=0.5,
    many_cases=500,
    asked=50,
)
"""For a look: rough figures within two minutes."""
