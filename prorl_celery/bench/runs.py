"""The benchmarks by name: which parts each has, in which order, on which services."""

from __future__ import annotations

from collections.abc import Callable

from prorl_celery.bench import crowd, noops, overlap, toy
from prorl_celery.bench.dapo.run import dapo
from prorl_celery.bench.kinds import kinds
from prorl_celery.bench.report import Report
from prorl_celery.bench.service import bench_service
from prorl_celery.bench.sizes import Sizes
from prorl_celery.bench.tokens import tokens
from prorl_celery.bench.tools import tools


def pipeline(sizes: Sizes) -> Report:
    """Overhead, overlap, the toy job, 256 at once."""
    report = Report("pipeline", sizes.rounds)
    report.part("starting a service, no-op jobs and bare chains", noops.FIGURES, lambda r: _noops(r, sizes))
    report.part("starting a service, the toy job", toy.FIGURES, lambda r: _toy(r, sizes))
    report.part("overlap of three stages", overlap.FIGURES, lambda r: overlap.overlap(r, sizes))
    report.part(f"{sizes.crowd} rollouts at once", crowd.FIGURES, lambda r: crowd.crowd(r, sizes))
    return report


BENCHES: dict[str, Callable[[Sizes], Report]] = {
    "pipeline": pipeline,
    "tools": tools,
    "tokens": tokens,
    "dapo": dapo,
    "kinds": kinds,
}


def run(name: str, sizes: Sizes) -> Report:
    """A benchmark by its name; `all` is every one, in one report. Raises KeyError."""
    if name != "all":
        return BENCHES[name](sizes)
    report = Report("all", sizes.rounds)
    for bench in BENCHES.values():
        report.take_in(bench(sizes))
    return report


def _noops(report: Report, sizes: Sizes) -> None:
    with bench_service() as service:
        report.part("no-op jobs and bare chains in turns", noops.RATE_FIGURES, lambda r: noops.rates(r, service, sizes))
        report.part("counting Redis commands", noops.COUNT_FIGURES, lambda r: noops.commands(r, service, sizes))


def _toy(report: Report, sizes: Sizes) -> None:
    with toy.backend_of(sizes) as backend, bench_service("--rollout", str(max(64, sizes.toys))) as service:
        service.register(backend)
        report.part("the toy job, one at a time", toy.ALONE_FIGURES, lambda r: toy.alone(r, service, backend, sizes))
        report.part(
            f"the toy job, {sizes.toys} at once", toy.TOGETHER_FIGURES, lambda r: toy.together(r, service, sizes)
        )
        report.part("the toy job's memory", toy.MEMORY_FIGURES, lambda r: toy.memory(r, service, sizes))
        report.part("cancels", toy.CANCEL_FIGURES, lambda r: toy.cancels(r, service, sizes))
