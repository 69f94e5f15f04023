"""The benchmark of batches, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from prorl_celery.bench.dapo import commands, options
from prorl_celery.bench.dapo.ahead import ahead
from prorl_celery.bench.dapo.figure import slots
from prorl_celery.bench.dapo.outcome import Outcome
from prorl_celery.bench.dapo.rivals import WAYS, greedy
from prorl_celery.bench.dapo.simulated import ours
from prorl_celery.bench.dapo.workload import LONG_TAILED, OTHERS, Prompts, Workload
from prorl_celery.bench.report import BenchFailed, Report, Table, median
from prorl_celery.bench.sizes import Sizes
from prorl_celery.bench.tokens.balance import own_redis
from prorl_celery.settings import Settings

ONE_STEP = ("ratio_to_oracle", "greedy_ratio_to_oracle", "speedup_over_rounds", "last_step_waste_saved_share")
TEN_STEPS = ("ten_step_time_over_first_server", "waste_over_first_server")
STEPS = 10

Way = Callable[[Prompts, int], Outcome]


def dapo(sizes: Sizes) -> Report:
    """All of it. Leaves nothing behind."""
    report = Report("dapo", sizes.dapo_seeds)
    report.part("starting Redis, the simulation", (*ONE_STEP, *TEN_STEPS), lambda r: _simulated(r, sizes))
    return report


def _simulated(report: Report, sizes: Sizes) -> None:
    with own_redis() as settings, _client(settings) as client:

        def way(prompts: Prompts, steps: int, **more: Any) -> Outcome:
            client.flushall()
            return ours(client, settings, prompts, steps, **more)

        report.part(f"one step, {sizes.dapo_seeds} seeds", ONE_STEP, lambda r: one_step(r, way, sizes))
        report.part(f"{STEPS} steps, {sizes.dapo_ten_step_seeds} seeds", TEN_STEPS, lambda r: ten_steps(r, way, sizes))
        report.part("other workloads", (), lambda r: other_workloads(r, way, sizes))
        report.part("how far ahead", (), lambda r: ahead(r, settings, sizes.dapo_seeds))
        report.part("options", options.FIGURES, lambda r: options.options(r, way, sizes.dapo_seeds))
        report.part(
            "counting Redis commands", commands.FIGURES, lambda r: commands.commands(r, client, settings, sizes)
        )


@contextmanager
def _client(settings: Settings) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(settings.redis_url) as client:
        yield client


def one_step(report: Report, way: Way, sizes: Sizes) -> None:
    """One step from cold. Raises `BenchFailed` when a batch gets another number of groups than it asked for."""
    outcomes = _outcomes(LONG_TAILED, {"ours": way, **WAYS}, 1, sizes.dapo_seeds)
    report.tables.append(_table(f"one step of {LONG_TAILED.target} groups, seconds", outcomes))
    # The seed whose rounds take the median time: they differ most.
    shown = sorted(range(sizes.dapo_seeds), key=lambda seed: outcomes["rounds"][seed].seconds)[sizes.dapo_seeds // 2]
    slots(report, {name: many[shown] for name, many in outcomes.items()})
    report.figures |= {
        "ratio_to_oracle": _ratio(outcomes, "ours", "oracle"),
        "greedy_ratio_to_oracle": _ratio(outcomes, "greedy", "oracle"),
        "speedup_over_rounds": _ratio(outcomes, "rounds", "ours"),
        "last_step_waste_saved_share": 1
        - median([a.last_waste_s / b.last_waste_s for a, b in zip(outcomes["ours"], outcomes["greedy"], strict=True)]),
    }


def ten_steps(report: Report, way: Way, sizes: Sizes) -> None:
    """Ten steps in a row, what is unfinished carried over."""
    ways = {"ours": way, "first server": WAYS["first server"], "greedy": greedy, "oracle": WAYS["oracle"]}
    outcomes = _outcomes(LONG_TAILED, ways, STEPS, sizes.dapo_ten_step_seeds)
    report.tables.append(_table(f"{STEPS} steps of {LONG_TAILED.target} groups, seconds", outcomes))
    report.figures |= {
        "ten_step_time_over_first_server": _ratio(outcomes, "ours", "first server"),
        "waste_over_first_server": median(
            [a.wasted_s / b.wasted_s for a, b in zip(outcomes["ours"], outcomes["first server"], strict=True)]
        ),
    }


def other_workloads(report: Report, way: Way, sizes: Sizes) -> None:
    """One step of three other kinds of prompts."""
    rows: list[list[float | str]] = []
    for workload in OTHERS:
        outcomes = _outcomes(workload, {"ours": way, **WAYS}, 1, max(3, sizes.dapo_seeds // 3))
        uniform = median([o.uniform_s for o in outcomes["ours"]])
        rows.append(
            [
                workload.name,
                _ratio(outcomes, "ours", "oracle"),
                _ratio(outcomes, "greedy", "oracle"),
                _ratio(outcomes, "rounds", "ours"),
                median([o.wasted_s for o in outcomes["ours"]]),
                median([o.wasted_s for o in outcomes["greedy"]]),
                uniform,
            ]
        )
    report.tables.append(
        Table(
            "other workloads, one step",
            ("workload", "ours/oracle", "greedy/oracle", "rounds/ours", "wasted s", "greedy's", "uniform s"),
            rows,
        )
    )


def _outcomes(workload: Workload, ways: dict[str, Way], steps: int, seeds: int) -> dict[str, list[Outcome]]:
    outcomes: dict[str, list[Outcome]] = {name: [] for name in ways}
    for seed in range(seeds):
        prompts = Prompts(workload, seed)
        for name, way in ways.items():
            outcome = way(prompts, steps)
            if outcome.groups != [workload.target] * steps:
                raise BenchFailed(f"{name} got {outcome.groups} groups where {workload.target} a step were asked for")
            outcomes[name].append(outcome)
    return outcomes


def _ratio(outcomes: dict[str, list[Outcome]], one: str, other: str) -> float:
    return median([a.seconds / b.seconds for a, b in zip(outcomes[one], outcomes[other], strict=True)])


def _table(title: str, outcomes: dict[str, list[Outcome]]) -> Table:
    rows: list[list[float | str]] = [
        [
            name,
            median([o.seconds for o in many]),
            median([o.wasted_s for o in many]),
            median([o.uniform_s for o in many]),
        ]
        for name, many in outcomes.items()
    ]
    return Table(title, ("way", "to the target", "wasted", "uniform groups"), rows)
