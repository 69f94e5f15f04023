"""From asking for a sandbox until its shell has run a first command: one at a time, and many at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from prorl_celery.bench.report import BenchFailed, Report, Table, median, percentile
from prorl_celery.bench.sizes import Sizes
from prorl_celery.bench.tools.ours import START_SECONDS, Place
from prorl_celery.node.pause import until
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing.keeper import KeeperProcess

SPARES = 2
SPARE = ("sandbox_start_ms_spare",)
KINDS = ("bwrap", "singularity")


def starts(report: Report, place: Place, sizes: Sizes) -> None:
    """Start sandboxes of each kind: some one by one, then so many together, a few times."""
    columns = ["kind", "alone", "p95", f"{sizes.at_once} at once", "p95 of those", "the last of them"]
    lines: list[Sequence[float | str | None]] = []
    for kind in KINDS:
        figures = [f"sandbox_start_ms_{kind}", f"sandbox_start_ms_{kind}_{sizes.at_once}"]
        if kind in place.lacks:
            report.lack(figures, place.lacks[kind])
            continue

        def take(report: Report, kind: str = kind) -> None:
            lines.append([kind, *_take(report, place.keeper, kind, place.specs[kind], sizes)])

        report.part(f"starts in {kind}", figures, take)
    report.part("starts that a spare waits for", SPARE, lambda r: lines.append(_spares(r, place, sizes)))
    report.tables.append(Table("From asking for a sandbox to the end of a first command, ms", columns, lines))


def _spares(report: Report, place: Place, sizes: Sizes) -> list[float | str | None]:
    """Starts from a keeper that starts some ahead, each when one waits."""
    spec, took = place.specs["bwrap"], []
    with KeeperProcess(place.keeper.settings.with_(node="bench-spares", spare_sandboxes=SPARES)) as keeper:
        for _ in range(1 + SPARES):  # what is asked for again is started ahead
            _start(keeper, spec, threading.Barrier(1))
        for _ in range(sizes.starts):
            # The oldest is taken; it has come up while the next was waited for.
            if not until(lambda: keeper.client.status()["spares"] == SPARES, START_SECONDS, every=0.01):
                raise BenchFailed("no spare sandbox was started")
            took.append(_start(keeper, spec, threading.Barrier(1)))
    report.figures[SPARE[0]] = median(took)
    return ["bwrap, a spare", median(took), percentile(took, 95), None, None, None]


def _take(report: Report, keeper: KeeperProcess, kind: str, spec: SandboxSpec, sizes: Sizes) -> list[float]:
    _start(keeper, spec, threading.Barrier(1))  # the keeper tries a kind out before its first
    alone = [_start(keeper, spec, threading.Barrier(1)) for _ in range(sizes.starts)]
    bursts = [_burst(keeper, spec, sizes.at_once) for _ in range(sizes.bursts)]
    together = [took for burst in bursts for took in burst]
    report.figures[f"sandbox_start_ms_{kind}"] = median(alone)
    report.figures[f"sandbox_start_ms_{kind}_{sizes.at_once}"] = median(together)
    lasts = median([max(burst) for burst in bursts])
    return [median(alone), percentile(alone, 95), median(together), percentile(together, 95), lasts]


def _burst(keeper: KeeperProcess, spec: SandboxSpec, count: int) -> list[float]:
    together = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        jobs = [pool.submit(_start, keeper, spec, together) for _ in range(count)]
    for error in filter(None, (job.exception() for job in jobs)):
        if not isinstance(error, threading.BrokenBarrierError):  # that one failed since another had
            raise error
    return [job.result() for job in jobs]


def _start(keeper: KeeperProcess, spec: SandboxSpec, together: threading.Barrier) -> float:
    """One start, begun when all of them begin; the sandbox lives until all have started."""
    with NeverCancelled() as never:
        together.wait(START_SECONDS)
        began = time.perf_counter()
        try:
            sandbox = keeper.client.start(spec, cancel=never, timeout=START_SECONDS)
        except BaseException:
            together.abort()
            raise
        took = (time.perf_counter() - began) * 1000
        try:
            together.wait(2 * START_SECONDS)
        finally:
            sandbox.stop()
    return took
