"""What a run of jobs amounts to: counted as results come, shown as a line of progress and as a table at
the end. However many results there are, it takes no more memory than for the groups that are under way.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from prorl_celery.cli.jobfile import group_of
from prorl_celery.cli.output import print_table, seconds
from prorl_celery.jobs.models import STAGES

MESSAGE_CHARACTERS = 300
"""Of the first error of each kind."""


@dataclass(slots=True)
class Durations:
    """Seconds, counted by their first three digits: some thousand counts do for any number of them."""

    counts: Counter[float] = field(default_factory=Counter)
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[float(f"{seconds:.3g}")] += 1
        self.longest = max(self.longest, seconds)

    @property
    def median(self) -> float:
        """To three digits; of an even number of them the lower one in the middle. Raises IndexError for none."""
        before, middle = 0, (self.counts.total() + 1) // 2
        for duration, count in sorted(self.counts.items()):
            before += count
            if before >= middle > 0:
                return duration
        raise IndexError("there are none")


@dataclass(slots=True)
class Group:
    """The results of a problem's samples, of which some are still to come."""

    ended: int = 0
    scored: int = 0
    low: float = 0.0
    high: float = 0.0

    def add(self, reward: float | None) -> None:
        """One more has ended; None has no reward."""
        self.ended += 1
        if reward is not None:
            self.low, self.high = (min(self.low, reward), max(self.high, reward)) if self.scored else (reward, reward)
            self.scored += 1

    @property
    def informative(self) -> bool:
        """Whether its rewards differ."""
        return self.high - self.low > 1e-6


class Tally:
    """Counts results. `total` is how many are expected, `samples` how many of each group; with 0 for not known, what
    is known of a group is kept to the end.
    """

    def __init__(self, total: int, *, samples: int = 0) -> None:
        self.total = total
        self.done = 0
        self.states: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._samples = samples
        self._scored = 0
        self._sum = 0.0
        self._open: dict[str, Group] = {}
        self._closed = self._closed_informative = 0
        self._times: dict[tuple[str, str], Durations] = {}
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
            kind = result["error"]["kind"]
            self.errors[kind] += 1
            self._first.setdefault(
                kind, str(result["error"].get("message") or "").partition("\n")[0][:MESSAGE_CHARACTERS]
            )
        turns = result.get("turns")
        if isinstance(turns, list):
            self._turns += len(turns)
            self._tokens += sum(turn["completion_tokens"] for turn in turns)
        for stage, timing in (result.get("timing") or {}).items():
            for what in ("queued", "running"):
                self._times.setdefault((stage, what), Durations()).add(timing[what])
        reward = result.get("reward")
        if reward is not None:
            self._scored += 1
            self._sum += reward
        self._add_to_group(group_of(result["job_id"]), reward)

    def _add_to_group(self, name: str, reward: float | None) -> None:
        group = self._open.setdefault(name, Group())
        group.add(reward)
        if group.ended == self._samples:
            del self._open[name]
            self._closed += group.scored > 0
            self._closed_informative += group.informative

    @property
    def mean_reward(self) -> float | None:
        """Over the scored jobs; None when there is none."""
        return self._sum / self._scored if self._scored else None

    @property
    def groups(self) -> int:
        """Groups with a scored job."""
        return self._closed + sum(group.scored > 0 for group in self._open.values())

    @property
    def informative(self) -> int:
        """Groups whose rewards differ."""
        return self._closed_informative + sum(group.informative for group in self._open.values())

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
            "groups": self.groups,
            "informative_groups": self.informative,
            "turns": self._turns,
            "sampled_tokens": self._tokens,
            "seconds": time.monotonic() - self._began,
            "jobs_per_s": self.rate,
            "stages": {
                stage: {
                    what: {"median": times.median, "max": times.longest}
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
                times = self._times.get((stage, what))
                row += [seconds(times.median), seconds(times.longest)] if times else ["-", "-"]
            stages.append(row)
        print_table(("stage", "queued: median", "longest", "running: median", "longest"), stages)
        reward = "-" if self.mean_reward is None else f"{self.mean_reward:.3f}"
        facts = [
            ("jobs", f"{self.done} ({', '.join(f'{count} {state}' for state, count in self.states.items())})"),
            ("reward, mean", reward),
            ("informative groups", f"{self.informative} of {self.groups} (rewards differ)"),
            ("turns, sampled tokens", f"{self._turns}, {self._tokens}"),
            ("rate", f"{self.rate:.1f} jobs/s"),
        ]
        if self.errors:
            facts.append(("errors", ", ".join(f"{count} {kind}" for kind, count in self.errors.items())))
            facts += [(f"the first {kind} error", said) for kind, said in self._first.items() if said]
        print_table(("figure", "value"), facts)
