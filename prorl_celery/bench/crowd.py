"""256 rollouts at once on one node, a model that takes a second a turn: slots in use, memory, what a turn costs.

What a turn adds is its total time less the model's second less its tools' time; the backend's own work for 256 callers
is in it. `..._ours` leaves out the whole model call instead, as the worker timed it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from prorl_celery.bench import processes
from prorl_celery.bench.report import Report, median, percentile
from prorl_celery.bench.service import BenchService, bench_service, jobs_of
from prorl_celery.bench.sizes import Sizes
from prorl_celery.testing import ScriptedBackend

FIGURES = ("slots_busy_share_256", "rollout_rss_mb_256", "added_turn_ms_median", "added_turn_ms_p99")
TOY = {"data_source": "toy"}


@dataclass(slots=True)
class Seen:
    """Peaks: rollouts that ran at once, resident bytes of all rollout workers together and of the largest."""

    rollouts: int = 0
    rss_sum: int = 0
    rss_largest: int = 0


def crowd(report: Report, sizes: Sizes) -> None:
    """Take the figures."""
    with ScriptedBackend(policy=f"toy:{sizes.crowd_turns}", latency=sizes.crowd_model_s) as backend:
        with bench_service("--init", "8", "--rollout", str(sizes.crowd), "--eval", "8") as service:
            service.register(backend)
            seen, over = Seen(), threading.Event()
            watcher = threading.Thread(target=_watch, args=(service, seen, over), name="watch")
            watcher.start()
            before = processes.cpu_seconds(service.pid)
            try:
                run = service.run(jobs_of(TOY, sizes.crowd), seconds=120 + 3 * sizes.crowd_turns * sizes.crowd_model_s)
            finally:
                over.set()
                watcher.join()
            service.settle()
            cpu = processes.cpu_seconds(service.pid) - before
            turns = [turn for result in service.results(run) for turn in result.turns]
            report.failed += run.failed
            peak_calls = backend.stats()["peak_live"]
    added = [(turn.total_s - sizes.crowd_model_s - turn.tool_s) * 1000 for turn in turns]
    ours = [(turn.total_s - turn.llm_s - turn.tool_s) * 1000 for turn in turns]
    report.figures["slots_busy_share_256"] = seen.rollouts / sizes.crowd
    report.figures["rollout_rss_mb_256"] = seen.rss_sum / 1e6
    report.figures["rollout_rss_mb_256_largest"] = seen.rss_largest / 1e6
    report.figures["added_turn_ms_median"] = median(added)
    report.figures["added_turn_ms_p99"] = percentile(added, 99)
    report.figures["added_turn_ms_median_ours"] = median(ours)
    report.figures["crowd_model_calls_at_once"] = peak_calls
    report.figures["crowd_cpu_s_per_turn"] = cpu / len(turns)


def _watch(service: BenchService, seen: Seen, over: threading.Event) -> None:
    """Look twice a second: how many rollouts run, and how large their processes are."""
    # The workers, without the warm parents of their killable children.
    workers = [p for p in processes.tree(service.pid) if p.parent == service.pid]
    pids = [p.pid for p in workers if p.name.startswith("prorl-rollout")]
    while not over.wait(0.5):
        status = service.client.service_status()
        running = status["jobs"]["rollout"] - status["stages"]["rollout"]["queued"]
        sizes = [processes.rss_bytes(pid) for pid in pids]
        seen.rollouts = max(seen.rollouts, running)
        seen.rss_sum = max(seen.rss_sum, sum(sizes))
        seen.rss_largest = max(seen.rss_largest, *sizes)
