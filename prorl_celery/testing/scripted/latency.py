"""How long a scripted reply takes: `0.2` (seconds), `lognormal:MEAN,SIGMA` or `tokens:SECONDS`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Latency = Callable[[int], float]
"""Seconds for a reply of so many tokens."""


def make_latency(spec: str, seed: int = 0) -> Latency:
    """The model that `spec` names; `MEAN` is the distribution's mean. Raises `ValueError`."""
    name, _, arguments = spec.partition(":")
    try:
        match name, [float(part) for part in arguments.split(",") if part]:
            case "lognormal", [mean, sigma] if mean > 0 and sigma >= 0:
                draw = random.Random(seed)
                mu = math.log(mean) - sigma * sigma / 2
                return lambda tokens: draw.lognormvariate(mu, sigma)
            case "tokens", [each] if each >= 0:
                return lambda tokens: tokens * each
            case _, [] if 0 <= float(name) < math.inf:
                fixed = float(name)
                return lambda tokens: fixed
    except ValueError:
        pass  # said below, with the forms there are
    raise ValueError(f"no latency {spec!r}; there are SECONDS, lognormal:MEAN,SIGMA and tokens:SECONDS")
