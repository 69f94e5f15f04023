"""Each family of benchmarks once, on a real service, with a handful of jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prorl_celery.bench import crowd, noops, overlap, toy
from prorl_celery.bench.processes import tree
from prorl_celery.bench.report import BenchFailed
from prorl_celery.bench.runs import pipeline
from prorl_celery.bench.service import bench_service, jobs_of
from prorl_celery.bench.sizes import Sizes

pytestmark = pytest.mark.e2e


@pytest.mark.slow
def test_the_pipeline_benchmarks_take_all_their_figures(tiny: Sizes):
    report = pipeline(tiny)
    assert report.failed == 0
    taken = set(noops.RATE_FIGURES + toy.FIGURES + overlap.FIGURES + crowd.FIGURES)
    assert taken <= set(report.figures)
    assert 10 < report.figures["redis_commands_per_job_12"] < 1000
    assert set(report.absent) == {"redis_commands_per_job_10000", "redis_commands_per_job_100"}
    assert report.figures["toy_cpu_s_per_rollout"] > 0
    assert report.figures["cancel_to_abort_ms_p99"] > 0
    json.dumps(report.as_json(), allow_nan=False)


def test_jobs_that_fail_are_counted_and_a_run_too_slow_ends():
    with bench_service("--init", "1", "--rollout", "1", "--eval", "1") as service:
        failing = jobs_of({"data_source": "wait", "init_s": 60, "rollout_s": 0, "eval_s": 0}, 2, timeouts={"init": 0.2})
        assert service.run(failing, seconds=60).failed == 2
        waits = jobs_of({"data_source": "wait", "init_s": 0, "rollout_s": 60, "eval_s": 0}, 2)
        with pytest.raises((BenchFailed, TimeoutError)):
            service.run(waits, seconds=2.0)
        for job in waits:
            service.client.cancel(job["job_id"])
        pid, place = service.pid, Path(service.redis_url.removeprefix("unix://").partition("?")[0]).parent
        assert place.exists()
    assert tree(pid) == []
    assert not place.exists()
