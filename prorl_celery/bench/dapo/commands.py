"""What a batch costs Redis for each job that ends, and how long its longest script holds it.

Beside each other: jobs without a batch, and those of batches of few and of many prompts, from the first command to the
last. What differs is the batch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from prorl_celery.bench.dapo.simulated import Fleet, sent_prompt
from prorl_celery.bench.dapo.workload import Prompts, Workload
from prorl_celery.bench.report import BenchFailed, Report, Table
from prorl_celery.bench.sizes import Sizes
from prorl_celery.jobs.batch_models import BatchRequest
from prorl_celery.jobs.models import JobRequest
from prorl_celery.settings import Settings
from prorl_celery.testing.monitor import CommandCount

FIGURES = (
    "redis_commands_per_job_100",
    "redis_commands_per_job_10000",
    "script_commands_per_job_100",
    "script_commands_per_job_10000",
    "longest_script_ms_512",
)
"""Commands are those that a batch adds for each of its jobs that ends; `100` and `10000` count its prompts."""
COUNTED_JOBS = 2000
"""Most jobs that are ended for a count: by then a large batch costs the same for each."""
WORKLOAD = Workload("counted", samples=8, slots=512)
ENDING_AT, ENOUGH = 16, 400
"""The target of a batch that begins with all slots in use, and prompts enough for it."""
REPEATED = 3

Count = tuple[float, float]
"""Client commands and script commands for each job that ended."""


def commands(report: Report, client: redis.Redis, settings: Settings, sizes: Sizes) -> None:
    """Count them, and take the time of the slowest script."""
    alone = count_alone(client, settings, min(sizes.dapo_prompts))
    rows: list[list[float | str]] = [["no batch", *alone, 0.0, 0.0]]
    for prompts in sizes.dapo_prompts:
        batch = count_batch(client, settings, prompts)
        added = batch[0] - alone[0], batch[1] - alone[1]
        rows.append([f"{prompts} prompts", *batch, *added])
        report.figures[f"redis_commands_per_job_{prompts}"] = added[0]
        report.figures[f"script_commands_per_job_{prompts}"] = added[1]
    report.tables.append(
        Table(
            "Redis commands for each job that ends",
            ("batch", "by clients", "by scripts", "added by clients", "added by scripts"),
            rows,
        )
    )
    report.figures["longest_script_ms_512"] = longest_script_ms(settings, max(sizes.dapo_prompts))


def count_alone(client: redis.Redis, settings: Settings, groups: int) -> Count:
    """Jobs that a trainer submits group by group, as many in flight as a batch has."""
    client.flushall()
    fleet, samples = Fleet(client, settings, Prompts(WORKLOAD, 1)), WORKLOAD.samples
    first = min(groups, WORKLOAD.slots // samples)
    with CommandCount(settings.redis_url) as counted:
        fleet.submit("a", [_job(prompt, sample) for prompt in range(first) for sample in range(samples)])
        fleet.fill()
        for ended in range(1, groups * samples + 1):
            fleet.step()
            if ended % samples == 0 and first < groups:
                fleet.submit("a", [_job(first, sample) for sample in range(samples)])
                first += 1
    return counted.client_commands / (groups * samples), counted.script_commands / (groups * samples)


def count_batch(client: redis.Redis, settings: Settings, prompts: int) -> Count:
    """Jobs of a batch that wants all of its prompts. What it costs to add these and to fill the slots is shared out
    over all jobs, the rest over those that ended.
    """
    client.flushall()
    fleet = Fleet(client, settings, Prompts(WORKLOAD, 1))
    fleet.name("b", range(prompts), 0)
    request = _batch(prompts, target=prompts)
    jobs = prompts * WORKLOAD.samples
    ended = min(jobs, COUNTED_JOBS)
    with CommandCount(settings.redis_url) as made:
        fleet.batches.create(request)
        fleet.fill()
    with CommandCount(settings.redis_url) as ran:
        for _ in range(ended):
            fleet.step()
    return (
        made.client_commands / jobs + ran.client_commands / ended,
        made.script_commands / jobs + ran.script_commands / ended,
    )


def longest_script_ms(settings: Settings, prompts: int) -> float:
    """The slowest script of two batches with 512 jobs in flight: one of many prompts is made, filled and cancelled, one
    comes to its target; all that then runs ends.

    Each run is of the same scripts in the same order, so that each one's least time is its own. Raises `BenchFailed`
    when they differ.
    """
    runs = [_script_ms(settings, prompts) for _ in range(REPEATED)]
    if len({len(run) for run in runs}) > 1:
        raise BenchFailed(f"runs of {[len(run) for run in runs]} scripts, which should be the same")
    return max(min(run[at] for run in runs) for at in range(len(runs[0])))


def _script_ms(settings: Settings, prompts: int) -> list[float]:
    """Of each script, in the order in which they ran."""
    with TimedRedis.from_url(settings.redis_url) as client:
        client.flushall()
        fleet = Fleet(client, settings, Prompts(WORKLOAD, 2))
        fleet.name("b", range(prompts), 0)
        fleet.batches.create(_batch(prompts, target=prompts))
        fleet.fill()
        fleet.batches.cancel("b")
        fleet.stop_revoked()
        fleet.name("c", range(ENOUGH), 0)
        fleet.batches.create(_batch(ENOUGH, target=ENDING_AT, name="c"))
        fleet.fill()
        while fleet.batches.state("c") == "filling":
            fleet.step()
        fleet.stop_revoked()
        return list(client.script_ms)


class TimedRedis(redis.Redis):
    """Notes how much of its processor's time each script took of the server, whatever else the machine does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.script_ms: list[float] = []

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """As any client does. Raises what it raises."""
        run: Callable[..., Any] = super().execute_command
        if args[0] not in {"EVAL", "EVALSHA"}:
            return run(*args, **options)
        before = _processor_ms(run)
        reply = run(*args, **options)
        self.script_ms.append(_processor_ms(run) - before)
        return reply


def _processor_ms(run: Callable[..., Any]) -> float:
    told = run("INFO", "cpu")
    return 1000 * float(told["used_cpu_user_main_thread"] + told["used_cpu_sys_main_thread"])


def _batch(prompts: int, *, target: int, name: str = "b") -> BatchRequest:
    return BatchRequest.model_validate(
        {
            "batch_id": name,
            "target_groups": target,
            "samples_per_group": WORKLOAD.samples,
            "max_inflight_jobs": WORKLOAD.slots,
            "prompts": [sent_prompt(number) for number in range(prompts)],
        }
    )


def _job(prompt: int, sample: int) -> JobRequest:
    return JobRequest.model_validate({"job_id": f"a:{prompt}:{sample}", "instance": sent_prompt(prompt)["instance"]})
