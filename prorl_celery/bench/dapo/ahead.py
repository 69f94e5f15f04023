"""How many groups are kept in flight for each one that is missing: other numbers than the scripts' own, beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import NoScriptError

from prorl_celery.bench.dapo.outcome import Outcome
from prorl_celery.bench.dapo.rivals import greedy, oracle
from prorl_celery.bench.dapo.simulated import ours
from prorl_celery.bench.dapo.workload import LONG_TAILED, Prompts
from prorl_celery.bench.report import BenchFailed, Report, Table, median
from prorl_celery.settings import Settings

LINE = "local AHEAD = {}\n"
IN_USE = 3.0
"""The scripts' own."""
TRIED = (1.0, 1.5, 2.0, IN_USE, 4.0)


class AheadRedis(redis.Redis):
    """Runs the scripts with another `AHEAD`: their text is changed on its way to Redis."""

    ahead = IN_USE

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """As any client does. Raises `BenchFailed` for a script without the line that is to be changed."""
        run: Callable[..., Any] = super().execute_command
        if args[0] == "EVALSHA":
            # The caller knows its own text's; that text follows.
            known: dict[str, str] = self.__dict__.setdefault("changed", {})
            if args[1] not in known:
                raise NoScriptError("not changed yet")
            return run("EVALSHA", known[args[1]], *args[2:], **options)
        if args[0] == "EVAL":
            before, after = LINE.format(f"{IN_USE:g}"), LINE.format(f"{self.ahead:g}")
            if before not in args[1]:
                raise BenchFailed(f"no script says {before!r}")
            text = args[1].replace(before, after)
            self.__dict__.setdefault("changed", {})[_sha(args[1])] = _sha(text)
            return run("EVAL", text, *args[2:], **options)
        return run(*args, **options)


def ahead(report: Report, settings: Settings, seeds: int) -> None:
    """One step from cold with each; greedy is that without a limit."""
    load = [Prompts(LONG_TAILED, seed) for seed in range(seeds)]
    best = [oracle(prompts, 1) for prompts in load]
    rows = [_row(f"{tried:g}", [_with(settings, prompts, tried) for prompts in load], best) for tried in TRIED]
    rows.append(_row("greedy", [greedy(prompts, 1) for prompts in load], best))
    report.tables.append(
        Table(
            "groups in flight for each that is missing, one step",
            ("ahead", "seconds", "over the oracle", "wasted s", "uniform s"),
            rows,
        )
    )


def _with(settings: Settings, prompts: Prompts, tried: float) -> Outcome:
    with AheadRedis.from_url(settings.redis_url) as client:
        client.ahead = tried
        client.flushall()
        return ours(client, settings, prompts, 1)


def _row(name: str, outcomes: list[Outcome], best: list[Outcome]) -> list[float | str]:
    return [
        name,
        median([outcome.seconds for outcome in outcomes]),
        median([a.seconds / b.seconds for a, b in zip(outcomes, best, strict=True)]),
        median([outcome.wasted_s for outcome in outcomes]),
        median([outcome.uniform_s for outcome in outcomes]),
    ]


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
