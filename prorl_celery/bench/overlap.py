"""Overlap, the point of three stages with slots of their own: the slowest stage is never kept waiting by the others.

Jobs that wait 1, 4 and 2 s in init, rollout and eval, with slots in the same proportion, so that every stage has the
same ideal rate. The rate is taken from the end of the first wave on: filling the pipeline is no stage's fault, and the
whole run's rate stands beside it. One shared pool of as many slots, each running a job's three stages in sequence,
is played by plain threads in the benchmark's process: it has no Redis, no HTTP and no durability to pay for.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from prorl_celery.bench.report import Report
from prorl_celery.bench.service import bench_service, jobs_of, seconds_of
from prorl_celery.bench.sizes import Sizes
from prorl_celery.node.pause import pause

FIGURES = ("overlap_efficiency", "overlap_over_shared_pool")


def overlap(report: Report, sizes: Sizes) -> None:
    """Take the figures."""
    init_s, rollout_s, eval_s = sizes.stage_s
    slots = dict(zip(("--init", "--rollout", "--eval"), map(str, sizes.stage_slots), strict=True))
    ideal = min(count / each for count, each in zip(sizes.stage_slots, sizes.stage_s, strict=True))
    instance = {"data_source": "wait", "init_s": init_s, "rollout_s": rollout_s, "eval_s": eval_s}
    with bench_service(*(word for pair in slots.items() for word in pair)) as service:
        jobs = jobs_of(instance, sizes.waits)
        run = service.run(jobs, seconds=60.0 + 3 * sizes.waits / ideal)
        report.failed += run.failed
        times = [seconds_of(status) for status in service.statuses(run)]
    rate = steady_rate([ended for _, ended in times], sizes.stage_slots[0])
    pool_slots = sum(sizes.stage_slots)
    ended, peak = shared_pool(sizes, pool_slots)
    report.figures["overlap_efficiency"] = rate / ideal
    report.figures["overlap_over_shared_pool"] = rate / steady_rate(ended, pool_slots)
    report.figures["overlap_efficiency_whole_run"] = sizes.waits / run.wall_s / ideal
    report.figures["overlap_rollouts_at_once"] = sizes.stage_slots[1]
    report.figures["shared_pool_rollouts_at_once"] = peak


def steady_rate(ended: list[float], first_wave: int) -> float:
    """Jobs per second after the first wave of so many, from the times at which jobs ended.

    Raises ValueError when the first wave is all there is.
    """
    ordered = sorted(ended)
    if len(ordered) <= first_wave:
        raise ValueError(f"{len(ordered)} jobs are no more than the first wave of {first_wave}")
    return (len(ordered) - first_wave) / (ordered[-1] - ordered[first_wave - 1])


def shared_pool(sizes: Sizes, slots: int) -> tuple[list[float], int]:
    """When each job ended that ran in a pool of so many slots, and the most rollouts that were under way at once."""
    init_s, rollout_s, eval_s = sizes.stage_s
    lock = threading.Lock()
    under_way = peak = 0

    def job(_: int) -> float:
        nonlocal under_way, peak
        pause(init_s)
        with lock:
            under_way += 1
            peak = max(peak, under_way)
        pause(rollout_s)
        with lock:
            under_way -= 1
        pause(eval_s)
        return time.time()

    with ThreadPoolExecutor(slots) as pool:
        return list(pool.map(job, range(sizes.waits))), peak
