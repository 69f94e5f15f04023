"""What is rolled out: prompts whose samples take so long and score so. The same for every way of filling, by seed.

Rollout times are log-normal with a long tail. A prompt's chance of success comes from a Beta distribution; where that
is U-shaped most groups are uniform, all wrong or all right.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

Z99 = 2.326
"""The standard normal's 99th percentile."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of prompts. Times in seconds; `alpha` and `beta` are the Beta distribution's."""

    name: str
    median_s: float = 120.0
    p99_s: float = 1500.0
    alpha: float = 0.24
    beta: float = 0.24
    samples: int = 8
    target: int = 32
    slots: int = 512


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout as it goes: how long, and what it is worth."""

    seconds: float
    reward: float


LONG_TAILED = Workload("long-tailed")
"""About 60 % of the groups are uniform."""

OTHERS = (
    Workload("even", p99_s=240.0),
    Workload("hopeless", alpha=0.08, beta=0.4),
    Workload("small", samples=4, target=8, slots=64),
)
"""Short tails; nine tenths uniform; few slots for small groups."""


class Prompts:
    """The samples of all prompts of one seed. A sample drawn anew (`again`) is another one of the same prompt."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload = workload
        self._seed = seed
        self._sigma = math.log(workload.p99_s / workload.median_s) / Z99
        self._known: dict[tuple[int, int], list[Sample]] = {}

    def chance(self, prompt: int) -> float:
        """How likely a sample of a prompt is right."""
        return random.Random(f"{self._seed} {prompt}").betavariate(self.workload.alpha, self.workload.beta)

    def group(self, prompt: int, again: int = 0) -> list[Sample]:
        """The samples of a prompt."""
        known = self._known.get((prompt, again))
        if known is None:
            chance = self.chance(prompt)
            draw = random.Random(f"{self._seed} {prompt} {again}")
            known = [
                Sample(
                    self.workload.median_s * math.exp(self._sigma * draw.gauss(0.0, 1.0)),
                    float(draw.random() < chance),
                )
                for _ in range(self.workload.samples)
            ]
            self._known[(prompt, again)] = known
        return known

    def informative(self, prompt: int, again: int = 0) -> bool:
        """Whether the group's rewards differ."""
        return len({sample.reward for sample in self.group(prompt, again)}) > 1
