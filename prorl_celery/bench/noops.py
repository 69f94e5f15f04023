"""Pipeline overhead: jobs that do nothing, through HTTP and the three stages, against bare Celery chains.

The two take turns on the same machine and the same Redis server, since both are at the mercy of what else runs there.
Commands are counted in runs of their own: MONITOR slows the server.
"""

from __future__ import annotations

from prorl_celery.bench.chains import bare_chains
from prorl_celery.bench.report import Report, median
from prorl_celery.bench.service import BenchService, jobs_of
from prorl_celery.bench.sizes import Sizes
from prorl_celery.testing.monitor import CommandCount

RATE_FIGURES = ("jobs_per_s", "bare_chains_per_s", "ratio_to_bare_chain")
COUNT_FIGURES = (
    "redis_commands_per_job_100",
    "redis_commands_per_job_10000",
    "script_commands_per_job",
    "redis_bytes_per_job",
)
FIGURES = RATE_FIGURES + COUNT_FIGURES
NOOP = {"data_source": "noop"}
LEAST_PER_S = 5.0
"""Slower than this, whatever it is, counts as hanging."""


def rates(report: Report, service: BenchService, sizes: Sizes) -> None:
    """Jobs and chains per second, in turns."""
    jobs: list[float] = []
    chains: list[float] = []
    seconds = 30.0 + sizes.noops / LEAST_PER_S
    with bare_chains(service.redis_url) as bare:
        service.run(jobs_of(NOOP, min(50, sizes.noops)), seconds=60.0)
        bare.rate(min(50, sizes.noops), seconds=60.0)
        for _ in range(sizes.rounds):
            run = service.run(jobs_of(NOOP, sizes.noops), seconds=seconds)
            report.failed += run.failed
            jobs.append(sizes.noops / run.wall_s)
            chains.append(bare.rate(sizes.noops, seconds=seconds))
    report.figures["jobs_per_s"] = median(jobs)
    report.figures["bare_chains_per_s"] = median(chains)
    report.figures["ratio_to_bare_chain"] = median(jobs) / median(chains)


def commands(report: Report, service: BenchService, sizes: Sizes) -> None:
    """Redis commands and bytes of a job's whole life: submission, three stages, waiting for its end, its result read.

    Nothing is subtracted: heartbeats, sweeps and the blocking reads of idle workers are in it.
    """
    for count in sizes.counted:
        service.skip_results()
        with CommandCount(service.redis_url) as counted:
            run = service.run(jobs_of(NOOP, count), seconds=60.0 + count / LEAST_PER_S)
            before_reading = counted.client_commands
            service.results(run)
        report.failed += run.failed
        name = f"redis_commands_per_job_{count}"
        report.figures[name] = counted.client_commands / count
        report.figures[f"{name}_without_reading"] = before_reading / count
        report.figures["script_commands_per_job"] = counted.script_commands / count
        report.figures["redis_bytes_per_job"] = counted.bytes / count
        if count == 10_000:
            report.figures["jobs_per_s_10000_under_monitor"] = count / run.wall_s
    lacking = [name for name in COUNT_FIGURES if name not in report.figures]
    report.lack(lacking, f"this run counted {', '.join(map(str, sizes.counted))} jobs")
