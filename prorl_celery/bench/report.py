"""What a benchmark came to: figures by their fixed names, and a reason for each that could not be taken.

A figure is measured or absent, never guessed. Goals stand beside the figures that have one; missing a goal is no
failure of the benchmark, a job that did not complete is.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.output import print_table
from prorl_celery.errors import ProrlError

GOALS: dict[str, tuple[str, float]] = {
    "ratio_to_bare_chain": (">=", 0.5),
    "redis_commands_per_job_100": ("<=", 60),
    "redis_commands_per_job_10000": ("<=", 60),
    "overlap_efficiency": (">=", 0.9),
    "bash_bwrap_ms_median": ("<=", 0.3),
    "ratio_to_raw_pty": ("<=", 3),
    "swerex_over_ours": (">=", 300),
    "tmux_over_ours": (">=", 2000),
    "output_10mb_s": ("<", 0.5),
    "output_10mb_rss_mb": ("<=", 40),
    "kernel_over_bare": ("<=", 1.5),
    "warm_first_cell_ms": ("<", 50),
    "toy_rollouts_per_s_64": (">=", 20),
    "toy_cpu_s_per_rollout": ("<=", 0.06),
    "toy_added_turn_ms_1": ("<", 10),
    "toy_peak_pss_mb": ("<", 400),
    "slots_busy_share_256": (">=", 1.0),
    "rollout_rss_mb_256": ("<", 600),
    "added_turn_ms_median": ("<", 15),
    "balance_max_over_mean": ("<", 1.05),
    "late_joiner_share": ("<=", 2),
    "turn_cost_ratio_200_to_10": ("<=", 1.5),
    "commands_per_acquire": ("<=", 1),
    "ratio_to_oracle": ("<=", 1.6),
    "speedup_over_rounds": (">=", 5),
    "ten_step_time_over_first_server": ("<=", 0.7),
    "waste_over_first_server": ("<=", 0.5),
    "script_commands_per_job_100": ("<=", 30),
    "script_commands_per_job_10000": ("<=", 30),
    "longest_script_ms_512": ("<", 5),
    "dapo_redis_commands_per_job_100": ("<=", 2),
    "dapo_redis_commands_per_job_10000": ("<=", 2),
}
"""What the figures are to reach, on two cores. Where two benchmarks have a figure of one name, the second one's stands
here behind the benchmark's name.
"""


class BenchFailed(ProrlError):
    """A benchmark could not be carried through; the message says what was seen."""


FAILURES = (ProrlError, OSError, TimeoutError, RuntimeError)
"""What ends a part of a benchmark and not the whole."""


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that belong side by side; the first column names what a row is about."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[float | str | None]]


@dataclass(slots=True)
class Report:
    """Figures of one benchmark. `runs`: how often the repeated ones were taken; `failed`: jobs and parts."""

    name: str
    runs: int
    failed: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    curves: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """What a figure is drawn from: by name, a value from each time on."""

    def part(self, what: str, names: Sequence[str], take: Callable[[Report], None]) -> None:
        """Take some figures; when that fails, each of `names` that was not taken is absent with the reason."""
        click.echo(f"{self.name}: {what} ...", err=True)
        try:
            take(self)
        except FAILURES as error:
            self.lack(names, self.count_failure(what, error))

    def count_failure(self, what: str, error: BaseException) -> str:
        """Count a part that failed, tell it, and return the reason as the report has it."""
        self.failed += 1
        reason = f"{type(error).__name__}: {error}"
        click.echo(f"{self.name}: {what} failed: {reason}", err=True)
        return reason

    def lack(self, names: Sequence[str], reason: str) -> None:
        """Say why these figures are not there; those that are stay."""
        self.absent.update({name: reason for name in names if name not in self.figures})

    def take_in(self, other: Report) -> None:
        """Add another report's figures to these. One whose name is taken is put behind its benchmark's."""
        self.failed += other.failed
        taken = set(self.figures) | set(self.absent)
        self.figures.update({_apart(other.name, name, taken): value for name, value in other.figures.items()})
        self.absent.update({_apart(other.name, name, taken): why for name, why in other.absent.items()})
        self.tables += other.tables

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "name": self.name,
            "machine": machine(),
            "runs": self.runs,
            "failed": self.failed,
            "figures": {name: rounded(value) for name, value in self.figures.items()},
            "absent": self.absent,
            "tables": [
                {"title": table.title, "rows": [_by_column(table.columns, row) for row in table.rows]}
                for table in self.tables
            ],
        }

    def show(self) -> None:
        """Print the tables, that of the figures last."""
        for table in self.tables:
            cells = [[_cell(value) for value in row] for row in table.rows]
            print_table(table.columns, cells, title=table.title, numbers=True)
            click.echo()
        rows = [(name, f"{rounded(value):g}", *_judged(self.name, name, value)) for name, value in self.figures.items()]
        rows += [(name, "absent", "", reason) for name, reason in self.absent.items()]
        title = f"{self.name}: medians of {self.runs} runs where repeated; failed: {self.failed}"
        print_table(("figure", "value", "goal", ""), rows, title=title)


def _by_column(columns: Sequence[str], row: Sequence[float | str | None]) -> dict[str, float | str | None]:
    values = [rounded(value) if isinstance(value, float) else value for value in row]
    return dict(zip(columns, values, strict=True))


def _cell(value: float | str | None) -> str | None:
    return value if value is None or isinstance(value, str) else f"{rounded(value):g}"


def _apart(bench: str, name: str, taken: set[str]) -> str:
    return f"{bench}_{name}" if name in taken else name


def _judged(bench: str, name: str, value: float) -> tuple[str, str]:
    found = GOALS.get(f"{bench}_{name}", GOALS.get(name))
    if found is None:
        return "", ""
    sign, goal = found
    reached = {">=": value >= goal, "<=": value <= goal, "<": value < goal}[sign]
    return f"{sign} {goal:g}", "reached" if reached else "missed"


def rounded(value: float) -> float:
    """Four significant digits: the machine's noise is larger than what is cut."""
    return float(f"{value:.4g}")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of the values do not pass. Raises ValueError when there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


median = statistics.median


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": rounded(memory / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": rounded(os.getloadavg()[0]),
        "platform": sys.platform,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
