"""A service for a benchmark: `prorl up` as a user starts it, in a directory that is gone afterwards.

    with bench_service("--rollout", "64") as service:
        run = service.run(jobs_of({"data_source": "noop"}, 1000), seconds=120)

Real Redis, workers, API and sandboxes; the "model" is a scripted backend beside it, which the caller registers. The
benchmark is a trainer: it speaks HTTP, and waits by long-polls.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from prorl_celery import folders
from prorl_celery.bench.report import BenchFailed
from prorl_celery.cli.demo import running_service
from prorl_celery.client import Client, JobStatus, Result
from prorl_celery.jobs.models import TERMINAL
from prorl_celery.node.pause import until
from prorl_celery.node.places import run_dir_for
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings
from prorl_celery.testing import ScriptedBackend

HANDLERS = ",".join(
    f"prorl_celery.bench.handlers:{name}"
    for name in ("NoopHandler", "WaitHandler", "ToyHandler", "StepsHandler", "AskHandler")
)
KEPT_VARIABLES = ("PRORL_SANDBOX", "PRORL_SANDBOX_USER", "PRORL_ALLOW_UNSAFE_LOCAL")
"""Of the caller's settings, what a machine may need; all others are the defaults, so that figures compare."""

QUIET_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Run:
    """Jobs that have ended. `wall_s`: from the submission's beginning until the client knew that all had ended."""

    job_ids: list[str]
    wall_s: float
    failed: int


@dataclass(slots=True)
class BenchService:
    """A running service. `pid` is its supervisor's; `redis_url` its own Redis; `keeper` its node's; `logs` its
    folder of logs.
    """

    url: str
    pid: int
    redis_url: str
    client: Client
    keeper: KeeperClient
    logs: Path
    _read_to: str | None = None

    def run(self, jobs: list[dict[str, Any]], *, seconds: float) -> Run:
        """Submit jobs and wait until all have ended. Raises `BenchFailed` after `seconds`."""
        before = self.ended()
        ids = [job["job_id"] for job in jobs]
        began = time.monotonic()
        self.client.submit(jobs)
        # One long-poll and a few looks: a trainer's waiting is not to be what is measured.
        self.client.wait(ids[-1], timeout=max(1.0, began + seconds - time.monotonic()))
        left = began + seconds - time.monotonic()
        if not until(lambda: sum(self.ended().values()) - sum(before.values()) >= len(ids), left, every=0.01):
            raise BenchFailed(f"of {len(ids)} jobs not all ended within {seconds:g} s: {self.client.service_status()}")
        wall = time.monotonic() - began
        return Run(ids, wall, len(ids) - (self.ended()["completed"] - before["completed"]))

    def ended(self) -> dict[str, int]:
        """How many jobs have ended so far, by state."""
        jobs = self.client.service_status()["jobs"]
        return {state: int(jobs[state]) for state in TERMINAL}

    def results(self, run: Run) -> list[Result]:
        """The results of a run; call `skip_results` before it. Raises `BenchFailed` when some are missing."""
        found: list[Result] = []
        while len(found) < len(run.job_ids):
            page = self.client.results_page(self._read_to, limit=1000)
            if not page.results:
                raise BenchFailed(f"of {len(run.job_ids)} results there are {len(found)}")
            found += page.results
            self._read_to = page.next
        if {result.job_id for result in found} != set(run.job_ids):
            raise BenchFailed(f"{len(found)} results came, not all of the {len(run.job_ids)} jobs of the run")
        return found

    def skip_results(self) -> None:
        """Read past the results of what has ended so far."""
        while (page := self.client.results_page(self._read_to, limit=1000)).results:
            self._read_to = page.next

    def statuses(self, run: Run) -> list[JobStatus]:
        """The statuses of a run's jobs."""
        return [self.client.status(job_id) for job_id in run.job_ids]

    def register(self, backend: ScriptedBackend) -> None:
        """Register a scripted backend."""
        self.client.add_backend(backend.url, backend.model, kind="vllm", tokenizer=str(backend.tokenizer_dir))

    def settle(self) -> None:
        """Wait until no job's sandbox is left and the spares are there again, so that all that they cost is in the
        tree's sum. Raises `BenchFailed`.
        """

        def settled() -> bool:
            status = self.keeper.status()
            return not status["live"] and not status["spares_missing"]

        if not until(settled, QUIET_SECONDS, every=0.02):
            raise BenchFailed(f"sandboxes live on {QUIET_SECONDS:g} s after their jobs, or spares do not come")


def jobs_of(instance: Mapping[str, Any], count: int, **fields: Any) -> list[dict[str, Any]]:
    """So many jobs of one instance, with ids of their own."""
    prefix = f"bench-{secrets.token_hex(4)}"
    return [{"job_id": f"{prefix}-{index}", "instance": dict(instance), **fields} for index in range(count)]


def seconds_of(status: JobStatus) -> tuple[float, float]:
    """When a job was accepted and when it ended, in seconds since the epoch. Raises ValueError while it runs."""
    if status.finished_at is None:
        raise ValueError(f"{status.job_id} has not ended")
    return datetime.fromisoformat(status.created_at).timestamp(), datetime.fromisoformat(status.finished_at).timestamp()


@contextmanager
def bench_service(*options: str) -> Iterator[BenchService]:
    """A service for the time of the block, with `prorl up`'s options. Leaves nothing behind."""
    own = folders.temporary("bench")
    folder = own.path
    environ = {n: v for n, v in os.environ.items() if not n.startswith("PRORL_") or n in KEPT_VARIABLES}
    try:
        with running_service(folder, *options, environ={**environ, "PRORL_HANDLERS": HANDLERS}) as url:
            pid = int(json.loads((folder / "service.json").read_text())["pid"])
            redis_url = f"unix://{run_dir_for(folder)}/redis.sock?db=0"
            with Client(url) as client:
                yield BenchService(
                    url, pid, redis_url, client, KeeperClient(Settings(run_dir=run_dir_for(folder))), folder / "logs"
                )
    finally:
        # The service removes its own run directory, unless it had to be killed.
        shutil.rmtree(run_dir_for(folder), ignore_errors=True)
        own.close()
