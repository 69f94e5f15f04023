"""What a batch costs Redis for each job that ends, and how long its longest script holds it.

Beside each other: the same jobs without a batch, and in batches of few and of many prompts. What differs
is the batch's.
"""

from __future__ import annotations

import secrets
from typing import Any

import redis

from prorl_celery.bench.dapo.simulated import Fleet
from prorl_celery.bench.dapo.workload import Prompts, Workload
from prorl_celery.bench.report import Report
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
COUNTED_JOBS = 400
WORKLOAD = Workload("counted", samples=8, target=100, slots=512)


def commands(report: Report, client: redis.Redis, settings: Settings, sizes: Sizes) -> None:
    """Count them, and take the time of the slowest script."""
    alone = _count(client, settings, None)
    for prompts in sizes.dapo_prompts:
        batch = _count(client, settings, prompts)
        report.figures[f"redis_commands_per_job_{prompts}"] = batch[0] - alone[0]
        report.figures[f"script_commands_per_job_{prompts}"] = batch[1] - alone[1]
    report.figures["longest_script_ms_512"] = _longest_script_ms(client, settings)


def _count(client: redis.Redis, settings: Settings, prompts: int | None) -> tuple[float, float]:
    """Client commands and script commands for each job that ended."""
    client.flushall()
    load = Prompts(WORKLOAD, 1)
    fleet = Fleet(client, settings, load)
    if prompts is None:
        # As many in the queue as a batch has: each that ends makes room for one.
        fleet.submit([_job(n) for n in range(WORKLOAD.slots)])
    else:
        fleet.name("b", range(prompts), 0)
        fleet.batches.create(_batch(prompts, WORKLOAD.target, WORKLOAD.slots))
    fleet.fill()
    with CommandCount(settings.redis_url) as counted:
        for number in range(COUNTED_JOBS):
            fleet.step()
            if prompts is None and number % WORKLOAD.samples == 0:
                fleet.submit([_job(n) for n in range(WORKLOAD.samples)])
    return counted.client_commands / COUNTED_JOBS, counted.script_commands / COUNTED_JOBS


def _longest_script_ms(client: redis.Redis, settings: Settings) -> float:
    """With 512 jobs in flight, of a batch that comes to its target: the server's own time of its slowest script."""
    client.flushall()
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 20_000)
    load = Prompts(WORKLOAD, 2)
    fleet = Fleet(client, settings, load)
    fleet.name("b", range(400), 0)
    fleet.batches.create(_batch(400, 4, 512))
    fleet.fill()
    client.slowlog_reset()
    while fleet.batches.state("b") == "filling":
        fleet.step()
    slow: Any = client.slowlog_get(20_000)
    return max(int(entry["duration"]) for entry in slow if entry["command"].startswith(b"EVAL")) / 1000


def _batch(prompts: int, target: int, room: int) -> BatchRequest:
    return BatchRequest.model_validate(
        {
            "batch_id": "b",
            "target_groups": target,
            "samples_per_group": WORKLOAD.samples,
            "max_inflight_jobs": room,
            "prompts": [
                {"prompt_id": f"p{n}", "instance": {"data_source": "math", "problem": str(n), "answer": "1"}}
                for n in range(prompts)
            ],
        }
    )


def _job(number: int) -> JobRequest:
    instance = {"data_source": "math", "problem": str(number), "answer": "1"}
    return JobRequest.model_validate({"job_id": f"a{secrets.token_hex(2)}:{number}:0", "instance": instance})
