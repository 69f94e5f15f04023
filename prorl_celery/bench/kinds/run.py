"""The benchmark of the task kinds, part by part: answers; programs and patches in sandboxes; others' scores.

`_per_cpu_s` is so many for a second of processor time, all processes together: what a core grades. `_per_s` is what one
after another comes to on the wall clock. `_over_bare` is ours over the same done without any of it, medians of one run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from prorl_celery import folders
from prorl_celery.bench.kinds import answers, calls, code, swe
from prorl_celery.bench.report import BenchFailed, Report
from prorl_celery.bench.sizes import Sizes
from prorl_celery.cli.datasets import sandbox_python
from prorl_celery.sandbox.base import Sandbox, SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess
from tasks.nursery import Nursery

START_SECONDS = 60.0
SANDBOX_FIGURES = (*code.FIGURES, *code.RATIO_FIGURES, *code.MANY_FIGURES, *swe.FIGURES)


def kinds(sizes: Sizes) -> Report:
    """All of it. Leaves nothing behind."""
    report = Report("kinds", 1)
    seconds = sizes.kinds_s
    with _children() as in_child:
        report.part("mathematics", answers.MATH_FIGURES, lambda r: answers.math(r, in_child, seconds))
        report.part("reasoning-gym", answers.GYM_FIGURES, lambda r: answers.reasoning_gym(r, in_child, seconds))
    report.part("science", answers.STEM_FIGURES, lambda r: answers.stem(r, seconds))
    report.part("starting a keeper, programs and patches", SANDBOX_FIGURES, lambda r: _in_sandboxes(r, sizes))
    report.part("a reward server, ours and bare in turns", calls.REWARD_FIGURES, lambda r: calls.reward_url(r, seconds))
    report.part(
        f"starting a service, a judge asked {sizes.asked} times, ours and bare in turns",
        calls.ASK_FIGURES,
        lambda r: calls.ask_model(r, sizes.asked),
    )
    return report


def _in_sandboxes(report: Report, sizes: Sizes) -> None:
    seconds = sizes.kinds_s
    found = sandbox_python()
    if found is None:
        raise BenchFailed("this machine has no Python that a sandbox without an image could see")
    with _sandboxes() as start, folders.temporary("bench") as folder:
        python, place = found[0], folder.path
        report.part("programs", code.FIGURES, lambda r: code.throughput(r, start, seconds))
        report.part(
            "programs, ours and bare in turns",
            code.RATIO_FIGURES,
            lambda r: code.overhead(r, start, python, place, seconds),
        )
        report.part("patches", swe.FIGURES, lambda r: swe.evals(r, start, python, place / "swe", seconds))
        many = sizes.many_cases
        report.part(f"a problem of {many} cases", code.MANY_FIGURES, lambda r: code.many_cases(r, start, many))


@contextmanager
def _children() -> Iterator[Callable[..., Any]]:
    """`ctx.in_child` of a stage, without one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, which other benchmarks left
        nursery = Nursery()
    try:
        with NeverCancelled() as never:
            yield partial(nursery.call, cancel=never)
    finally:
        nursery.close()


@contextmanager
def _sandboxes() -> Iterator[Callable[[], Sandbox]]:
    """Starts sandboxes as eval's are, each when it is asked for; a keeper of its own, gone afterwards."""
    with folders.temporary("bench") as folder, NeverCancelled() as never:
        settings = Settings(run_dir=Path(folder.path), node="bench", spare_sandboxes=0)
        with KeeperProcess(settings) as keeper:
            spec = SandboxSpec(job_id="bench", attempt=1, purpose="eval")
            yield lambda: keeper.client.start(spec, cancel=never, timeout=START_SECONDS)
