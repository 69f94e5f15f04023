"""The job on which peers were measured: five turns, a model that takes 200 ms, one shell command a turn but the last.

Through HTTP, Redis, Celery and a bubblewrap sandbox. Ideal is one second a job. What is added to a turn is
(wall time of the whole job - 1 s) / 5: submission, three stages, the sandbox's start and the commands are all in it.
CPU and memory are those of all processes of the service, sandboxes and Redis among them, without the scripted backend
and the benchmark's own client.
"""

from __future__ import annotations

import time

from prorl_celery.bench import processes
from prorl_celery.bench.report import BenchFailed, Report, median, percentile
from prorl_celery.bench.service import BenchService, Run, jobs_of, seconds_of
from prorl_celery.bench.sizes import Sizes
from prorl_celery.testing import ScriptedBackend

TURNS = 5
TOY = {"data_source": "toy"}
SECONDS = 120.0

TOGETHER_FIGURES = (
    "toy_rollouts_per_s_64",
    "toy_cpu_s_per_rollout",
    "toy_added_turn_ms_64",
    "toy_rollouts_per_s_steady",
)
ALONE_FIGURES = ("toy_added_turn_ms_1", "submit_to_first_call_ms")
MEMORY_FIGURES = ("toy_peak_pss_mb",)
CANCEL_FIGURES = ("cancel_to_abort_ms_p99",)
FIGURES = TOGETHER_FIGURES + ALONE_FIGURES + MEMORY_FIGURES + CANCEL_FIGURES

SANDBOX_NAMES = frozenset({"bwrap", "bash"})
REDIS_NAMES = frozenset({"redis-server", "valkey-server"})


def backend_of(sizes: Sizes) -> ScriptedBackend:
    """The toy's model; the last calls are kept."""
    return ScriptedBackend(policy=f"toy:{TURNS}", latency=sizes.model_s, record=64)


def together(report: Report, service: BenchService, sizes: Sizes) -> None:
    """All at once, several times; then a steady stream through the same slots."""
    rates, cpu, added = [], [], []
    _toys(report, service, sizes.toys)  # warms up what is made once
    for _ in range(sizes.rounds):
        service.settle()
        service.skip_results()
        before = processes.cpu_seconds(service.pid)
        run = _toys(report, service, sizes.toys)
        began = time.monotonic()
        service.results(run)
        rates.append(sizes.toys / (run.wall_s + time.monotonic() - began))
        service.settle()
        cpu.append((processes.cpu_seconds(service.pid) - before) / sizes.toys)
        added.append(median([_added_ms(ended - begun, sizes) for begun, ended in _times(service, run)]))
    report.figures["toy_rollouts_per_s_64"] = median(rates)
    report.figures["toy_cpu_s_per_rollout"] = median(cpu)
    report.figures["toy_added_turn_ms_64"] = median(added)
    parts = processes.cpu_by_part(service.pid)
    run = _toys(report, service, sizes.steady)
    service.settle()
    report.figures["toy_rollouts_per_s_steady"] = sizes.steady / run.wall_s
    used = {name: after - parts.get(name, 0.0) for name, after in processes.cpu_by_part(service.pid).items()}
    report.figures["toy_cpu_s_per_rollout_steady"] = sum(used.values()) / sizes.steady
    for name in sorted(used, key=lambda name: -used[name]):
        report.figures[f"toy_cpu_ms_per_rollout_steady_{name}"] = used[name] / sizes.steady * 1000


def alone(report: Report, service: BenchService, backend: ScriptedBackend, sizes: Sizes) -> None:
    """One at a time, as the client sees it: from the POST until its long-poll is answered."""
    added, stage, first_call = [], [], []
    for _ in range(sizes.alone):
        backend.reset()
        job = jobs_of(TOY, 1)[0]
        began = time.monotonic()
        service.client.submit(job)
        status = service.client.wait(job["job_id"], timeout=SECONDS)
        added.append(_added_ms(time.monotonic() - began, sizes))
        report.failed += status.state != "completed"
        stage.append(_added_ms(status.timing["rollout"].running, sizes))
        first_call.append((backend.calls()[0]["started"] - began) * 1000)
    report.figures["toy_added_turn_ms_1"] = median(added)
    report.figures["toy_added_turn_ms_1_rollout_stage"] = median(stage)
    report.figures["submit_to_first_call_ms"] = median(first_call)


def memory(report: Report, service: BenchService, sizes: Sizes) -> None:
    """The highest PSS while all run at once, in a run of its own."""
    with processes.peak_pss(service.pid) as peak:
        _toys(report, service, sizes.toys)
    if peak.unreadable:
        raise BenchFailed(f"{peak.unreadable} times a process's memory could not be read by this user")
    if not peak.samples:
        raise BenchFailed("the jobs were over before the first look at their memory")
    report.figures["toy_peak_pss_mb"] = peak.total / 1e6
    report.figures["toy_peak_pss_mb_redis"] = _sum(peak.by_name, REDIS_NAMES)
    report.figures["toy_peak_pss_mb_sandboxes"] = _sum(peak.by_name, SANDBOX_NAMES)


def cancels(report: Report, service: BenchService, sizes: Sizes) -> None:
    """From the DELETE of a job in a model call until the backend saw the call's end: one by one, then all in a burst.

    Both clocks are the machine's.
    """
    with ScriptedBackend(policy="toy", latency=600, record=sizes.cancels, model_id="scripted-slow") as slow:
        service.register(slow)
        try:
            alone = _cancel_all(report, service, slow, sizes, wait_for_each=True)
            burst = _cancel_all(report, service, slow, sizes, wait_for_each=False)
        finally:
            service.client.remove_backend(slow.url, mode="now")
    report.figures["cancel_to_abort_ms_median"] = median(alone)
    report.figures["cancel_to_abort_ms_p99"] = percentile(alone, 99)
    report.figures["cancel_to_abort_ms_p99_burst"] = percentile(burst, 99)


def _cancel_all(
    report: Report, service: BenchService, slow: ScriptedBackend, sizes: Sizes, *, wait_for_each: bool
) -> list[float]:
    """Milliseconds of each cancel."""
    slow.reset()
    jobs = jobs_of(TOY, sizes.cancels, sampling_params={"model": slow.model})
    service.client.submit(jobs)
    slow.wait_until(seconds=SECONDS, live=sizes.cancels)
    asked = {}
    for job in jobs:
        asked[job["job_id"]] = time.monotonic()
        service.client.cancel(job["job_id"])
        if wait_for_each:
            service.client.wait(job["job_id"], timeout=SECONDS)
    slow.wait_until(seconds=SECONDS, live=0)
    took = []
    for call in slow.calls():
        # cmpl-JOB-tTURN-RANDOM
        job_id = call["request_id"].partition("-")[2].rpartition("-t")[0]
        took.append((call["started"] + call["took_s"] - asked[job_id]) * 1000)
    states = [service.client.wait(job["job_id"], timeout=SECONDS).state for job in jobs]
    report.failed += sum(state != "cancelled" for state in states)
    return took


def _toys(report: Report, service: BenchService, count: int) -> Run:
    run = service.run(jobs_of(TOY, count), seconds=SECONDS + count)
    report.failed += run.failed
    return run


def _times(service: BenchService, run: Run) -> list[tuple[float, float]]:
    return [seconds_of(status) for status in service.statuses(run)]


def _added_ms(wall_s: float, sizes: Sizes) -> float:
    return (wall_s - TURNS * sizes.model_s) / TURNS * 1000


def _sum(by_name: dict[str, int], names: frozenset[str]) -> float:
    return sum(size for name, size in by_name.items() if name in names) / 1e6
