"""What two options gain, and what they cost: `stop_uniform_after` and the memory of uniform prompts."""

from __future__ import annotations

from collections.abc import Callable

from prorl_celery.bench.dapo.outcome import Outcome
from prorl_celery.bench.dapo.workload import LONG_TAILED, Prompts
from prorl_celery.bench.report import Report, Table, median

FIGURES = ("stop_uniform_after_4_time_ratio", "memory_ten_step_time_ratio")
AFTER = (None, 6, 4, 3)
DATASET = 400
"""Prompts that a trainer goes through again and again; ten steps draw about twice as many."""
EDGE = 0.2
"""A prompt whose chance is this near to 0 or 1 is an edge one: most of its groups begin alike."""


def options(report: Report, way: Callable[..., Outcome], seeds: int) -> None:
    """Both. The prompts are the same for each setting."""
    _stop_uniform_after(report, way, seeds)
    _memory(report, way, max(2, seeds // 5))


def _stop_uniform_after(report: Report, way: Callable[..., Outcome], seeds: int) -> None:
    rows: list[list[float | str]] = []
    times: dict[int | None, list[float]] = {}
    for after in AFTER:
        found = [way(Prompts(LONG_TAILED, seed), 1, stop_uniform_after=after) for seed in range(seeds)]
        times[after] = [outcome.seconds for outcome in found]
        edge = [
            sum(_is_edge(Prompts(LONG_TAILED, seed), prompt) for prompt in outcome.won) / len(outcome.won)
            for seed, outcome in enumerate(found)
        ]
        rows.append(
            [
                "never" if after is None else str(after),
                median(times[after]),
                median([outcome.uniform_s for outcome in found]),
                median([outcome.wasted_s for outcome in found]),
                sum(edge) / len(edge),
            ]
        )
    report.figures["stop_uniform_after_4_time_ratio"] = median(
        [a / b for a, b in zip(times[4], times[None], strict=True)]
    )
    report.tables.append(
        Table(
            "stop_uniform_after, one step",
            ("after", "seconds", "uniform s", "wasted s", "share of kept prompts near 0 or 1"),
            rows,
        )
    )


def _memory(report: Report, way: Callable[..., Outcome], seeds: int) -> None:
    rows: list[list[float | str]] = []
    times: dict[str | None, list[float]] = {}
    for memory in (None, "bench"):
        found = [way(Prompts(LONG_TAILED, seed), 10, memory=memory, dataset=DATASET) for seed in range(seeds)]
        times[memory] = [outcome.seconds for outcome in found]
        rows.append(
            [
                "without" if memory is None else "with",
                median(times[memory]),
                median([outcome.uniform_s for outcome in found]),
                median([float(outcome.uniform) for outcome in found]),
            ]
        )
    report.figures["memory_ten_step_time_ratio"] = median(
        [a / b for a, b in zip(times["bench"], times[None], strict=True)]
    )
    report.tables.append(
        Table(
            f"memory of uniform prompts, ten steps over {DATASET} prompts",
            ("memory", "seconds", "uniform s", "uniform groups"),
            rows,
        )
    )


def _is_edge(prompts: Prompts, prompt: int) -> bool:
    chance = prompts.chance(prompt)
    return chance < EDGE or chance > 1 - EDGE
