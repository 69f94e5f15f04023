"""Slots in use over time for four ways to fill a batch: as a table, and drawn (`prorl bench dapo --figure DIR`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from prorl_celery.bench.dapo.outcome import Outcome
from prorl_celery.bench.dapo.workload import LONG_TAILED
from prorl_celery.bench.report import BenchFailed, Report, Table

SHOWN = ("rounds", "first server", "ours", "oracle")
TITLE = "slots in use over time, one step"
TIMES = (0, 60, 120, 240, 360, 480, 600, 900, 1200, 1800, 2400, 3600, 4800, 6000)
NAME = "dapo-slots.png"


def slots_in_use(outcome: Outcome, second: float) -> float | None:
    """How many slots are in use at that time; None when the way has come to its target."""
    if second >= outcome.seconds:
        return None
    at = bisect_right(outcome.busy, second, key=lambda change: change[0])
    return float(outcome.busy[at - 1][1]) if at else 0.0


def slots(report: Report, outcomes: dict[str, Outcome]) -> None:
    """The table, and what the figure is drawn from."""
    shown = {name: outcomes[name] for name in SHOWN}
    longest = max(outcome.seconds for outcome in shown.values())
    rows: list[list[float | str | None]] = [
        [str(second), *(slots_in_use(outcome, second) for outcome in shown.values())]
        for second in TIMES
        if second < longest
    ]
    rows.append(["target at", *(outcome.seconds for outcome in shown.values())])
    report.tables.append(Table(TITLE, ("second", *shown), rows))
    report.curves = {name: [*outcome.busy, (outcome.seconds, 0)] for name, outcome in shown.items()}


def drawing() -> Any:
    """Matplotlib, without a display. Raises `BenchFailed` when it is not installed."""
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise BenchFailed(
            f"{error.name} is missing; the extra `bench` has it: pip install 'prorl-celery[bench]'"
        ) from None


def draw(report: Report, folder: Path) -> Path:
    """Draw the report's curves; the file. Raises `BenchFailed` without matplotlib or curves, OSError."""
    pyplot = drawing()
    if not report.curves:
        raise BenchFailed("there is nothing to draw: the part that takes it failed")
    folder.mkdir(parents=True, exist_ok=True)
    figure, panels = pyplot.subplots(len(report.curves), 1, sharex=True, sharey=True, figsize=(9, 7))
    for panel, (name, curve) in zip(panels, report.curves.items(), strict=True):
        _panel(panel, name, curve)
    panels[-1].set_xlabel("seconds")
    figure.suptitle(f"Slots in use until {LONG_TAILED.target} informative groups are there")
    figure.tight_layout()
    file = folder / NAME
    figure.savefig(file, dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    return file


def _panel(panel: Any, name: str, curve: Sequence[tuple[float, int]]) -> None:
    end = curve[-1][0]
    panel.fill_between([at for at, _ in curve], [busy for _, busy in curve], step="post", alpha=0.6)
    panel.axvline(end, color="black", linewidth=1)
    panel.set_title(f"{name}: {end:.0f} s", loc="left", fontsize=10)
    panel.set_ylim(0, LONG_TAILED.slots * 1.05)
    panel.set_xlim(left=0)
    panel.set_ylabel("slots")
