"""The benchmark of the model side, part by part."""

from __future__ import annotations

from prorl_celery.bench.report import Report
from prorl_celery.bench.sizes import Sizes
from prorl_celery.bench.tokens import at_once, balance, builder, calls


def tokens(sizes: Sizes) -> Report:
    """All of it. Leaves nothing behind."""
    report = Report("tokens", 1)
    report.part(
        f"{builder.TURNS} turns of one conversation", builder.FIGURES, lambda r: builder.builder(r, sizes.rounds)
    )
    report.part(
        f"{sizes.calls} calls, ours and bare ones in turns", calls.FIGURES, lambda r: calls.calls(r, sizes.calls)
    )
    report.part(
        f"{sizes.calls_at_once} calls at once", at_once.FIGURES, lambda r: at_once.at_once(r, sizes.calls_at_once)
    )
    report.part("starting Redis, the backend heap", balance.FIGURES, lambda r: _heap(r, sizes))
    return report


def _heap(report: Report, sizes: Sizes) -> None:
    with balance.own_redis() as settings:
        report.part(
            f"balance of {sizes.balanced} jobs",
            balance.FIGURES,
            lambda r: balance.balance(r, settings, sizes.balanced),
        )
        report.part("what an acquire costs", balance.COST_FIGURES, lambda r: balance.costs(r, settings, sizes.acquires))
