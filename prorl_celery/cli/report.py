"""What a run of jobs amounts to: counted as results come, shown as a line of progress and as a table at
the end.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

from prorl_celery.cli.jobfile import group_of
from prorl_celery.cli.output import print_table, seconds
from prorl_celery.jobs.models import STAGES


class Tally:
    """Counts results. `total` is how many are expected."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.states: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._rewards: list[float] = []
        self._groups: dict[str, tuple[float, float]] = {}
        self._times: dict[tuple[str, str], list[float]] = {}
        self._turns = 0
        self._tokens = 0
        self._began = time.monotonic()
        self._before = 0

    def add(self, result: dict[str, Any], *, earlier: bool = False) -> None:
        """Count one result; `earlier` ones (of a run before this) do not count for the rate."""
        self.done += 1
        self._before += earlier
        self.states[result["state"]] += 1
        if result.get("error"):
            self.errors[result["error"]["kind"]] += 1
        turns = result.get("turns")
        if isinstance(turns, list):
            self._turns += len(turns)
            self._tokens += sum(turn["completion_tokens"] for turn in turns)
        for stage, timing in (result.get("timing") or {}).items():
            for what in ("queued", "running"):
                self._times.setdefault((stage, what), []).append(timing[what])
        if (reward := result.get("reward")) is not None:
            self._rewards.append(reward)
            group = group_of(result["job_id"])
            low, high = self._groups.get(group, (reward, reward))
            self._groups[group] = (min(low, reward), max(high, reward))

    @property
    def mean_reward(self) -> float | None:
        """Over the scored jobs; None when there is none."""
        return statistics.fmean(self._rewards) if self._rewards else None

    @property
    def informative(self) -> int:
        """Groups whose rewards differ."""
        return sum(high - low > 1e-6 for low, high in self._groups.values())

    @property
    def rate(self) -> float:
        """Jobs a second in this run."""
        return (self.done - self._before) / max(1e-9, time.monotonic() - self._began)

    def line(self) -> str:
        """Progress in one line."""
        reward = "-" if self.mean_reward is None else f"{self.mean_reward:.3f}"
        failed = self.done - self.states["completed"]
        return f"{self.done}/{self.total} jobs, {self.rate:.1f}/s, reward {reward}, {failed} not completed"

    def summary(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "jobs": self.done,
            "states": dict(self.states),
            "errors": dict(self.errors),
            "reward_mean": self.mean_reward,
            "groups": len(self._groups),
            "informative_groups": self.informative,
            "turns": self._turns,
            "sampled_tokens": self._tokens,
            "seconds": time.monotonic() - self._began,
            "jobs_per_s": self.rate,
            "stages": {
                stage: {
                    what: {"median": statistics.median(times), "max": max(times)}
                    for what in ("queued", "running")
                    if (times := self._times.get((stage, what)))
                }
                for stage in STAGES
            },
        }

    def show(self) -> None:
        """The tables."""
        stages = []
        for stage in STAGES:
            row: list[Any] = [stage]
            for what in ("queued", "running"):
                times = sorted(self._times.get((stage, what), []))
                row += [seconds(statistics.median(times)), seconds(times[-1])] if times else ["-", "-"]
            stages.append(row)
        print_table(("stage", "queued: median", "longest", "running: median", "longest"), stages)
        reward = "-" if self.mean_reward is None else f"{self.mean_reward:.3f}"
        facts = [
            ("jobs", f"{self.done} ({', '.join(f'{count} {state}' for state, count in self.states.items())})"),
            ("reward, mean", reward),
            ("informative groups", f"{self.informative} of {len(self._groups)} (rewards differ)"),
            ("turns, sampled tokens", f"{self._turns}, {self._tokens}"),
            ("rate", f"{self.rate:.1f} jobs/s"),
        ]
        if self.errors:
            facts.append(("errors", ", ".join(f"{count} {kind}" for kind, count in self.errors.items())))
        print_table(("figure", "value"), facts)
