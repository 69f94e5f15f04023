"""The benchmark of the backend heap: even where it should be, and uneven where the others are."""

from __future__ import annotations

import pytest
import redis

from prorl_celery.bench.report import BenchFailed, Report
from prorl_celery.bench.sizes import Sizes
from prorl_celery.bench.tokens import tokens
from prorl_celery.bench.tokens.balance import (
    BACKENDS,
    COST_FIGURES,
    FIGURES,
    WINDOW,
    Dice,
    LifetimeHeap,
    Seen,
    balance,
    simulate,
)
from prorl_celery.settings import Settings


def test_the_family_runs_and_names_its_figures(tiny: Sizes) -> None:
    report = tokens(tiny)
    assert not report.failed
    assert not report.absent
    assert {*FIGURES, *COST_FIGURES} <= report.figures.keys()
    # A connection says its name once, when it is made.
    assert report.figures["commands_per_acquire"] == pytest.approx(1, abs=0.1)


@pytest.mark.usefixtures("redis_client")
def test_the_heap_is_even_and_a_late_joiner_is_not_flooded(redis_settings: Settings) -> None:
    report = Report("tokens", 1)
    balance(report, redis_settings.with_(lease_seconds=3600.0), 1000)
    figures = report.figures
    assert 1 <= figures["balance_max_over_mean"] < 1.05
    assert figures["lifetime_heap_max_over_mean"] > 1.1
    assert figures["random_max_over_mean"] > 1.1
    assert figures["late_joiner_share"] <= 2
    assert figures["late_joiner_share_lifetime_heap"] == BACKENDS


def test_the_same_seed_is_the_same_run() -> None:
    one, other = (simulate(LifetimeHeap(), 500, 3) for _ in range(2))
    assert one == other
    assert simulate(Dice(1), 500, 3).given != one.given


def test_a_share_is_that_of_the_worst_window() -> None:
    given = [0] * WINDOW + [1] * (WINDOW // 4) + [0] * WINDOW
    assert Seen(given=given).largest_share(1) == BACKENDS / 4
    with pytest.raises(BenchFailed):
        Seen(given=given[:10]).largest_share(1)


def test_a_registry_that_miscounts_is_told(
    redis_settings: Settings, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorl_celery.bench.tokens.balance.Heap.live", lambda self: [])
    with pytest.raises(BenchFailed, match="the registry counts"):
        balance(Report("tokens", 1), redis_settings, 200)
