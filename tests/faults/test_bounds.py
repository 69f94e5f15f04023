"""What must not grow: queues beyond their limit, Redis's keys, the memory of workers and API. Rows 19 and 20."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_service import eventually
from fault_jobs import hurt_job, nap_job, steps_job, wait_job
from fault_service import WITHIN_S, FaultService, hurt_service

from prorl_celery.bench.processes import rss_bytes
from prorl_celery.client import Client
from prorl_celery.errors import ApiError
from prorl_celery.testing import ScriptedBackend

MB = 1 << 20
CHANGING = re.compile(
    r"prorl:(processes|nodes|leader|swept|policy|passed|seq|counts|backends|heap|queues|results)\b|_kombu|unacked"
)
"""Keys of the service itself, not of jobs; those of processes that come and go expire."""


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory, backend: ScriptedBackend) -> Iterator[FaultService]:
    """One whose results expire within seconds, and whose queue is short."""
    folder = tmp_path_factory.mktemp("bounds")
    limits = {"PRORL_RESULT_TTL": "3", "PRORL_ID_TTL": "4", "PRORL_MAX_QUEUED": "100"}
    with hurt_service(folder, **limits) as service:
        service.add_backend(backend)
        yield service


@pytest.fixture
def service(hurt: FaultService) -> Iterator[FaultService]:
    """The ends of jobs are gone too soon to be asked for here; what is left is asked for as everywhere."""
    assert eventually(hurt.is_whole, WITHIN_S), hurt.logs()
    yield hurt
    hurt.submitted.clear()
    hurt.assert_sound()


def keys_of_jobs(service: FaultService) -> set[str]:
    found = {key for key in map(bytes.decode, service.redis.keys("*")) if not CHANGING.match(key)}
    return {key for key in found if not (key.startswith("prorl:lost:") and service.redis.ttl(key) > 0)}


@pytest.mark.slow
def test_the_keys_are_back_to_what_they_were_when_all_jobs_have_expired(service: FaultService) -> None:
    assert eventually(lambda: keys_of_jobs(service) == set(), WITHIN_S), keys_of_jobs(service)
    ids = service.submit(
        [
            *(wait_job(job_id=f"keys-{n}", tags={"step": "1"}) for n in range(40)),
            *(steps_job("echo 1 >> steps", steps=1, job_id=f"keys-steps-{n}") for n in range(4)),
            *(hurt_job(f"keys-bad-{n}", "raise", max_attempts=2) for n in range(4)),
            hurt_job("keys-poison", "die", max_attempts=1),
            nap_job(600, job_id="keys-cancelled"),
        ]
    )
    service.client.cancel(ids[-1])
    assert keys_of_jobs(service)
    assert eventually(lambda: sum(live(service).values()) == 0, 2 * WITHIN_S), service.logs()
    assert eventually(lambda: keys_of_jobs(service) == set(), WITHIN_S), keys_of_jobs(service)
    assert service.redis.xlen("prorl:results") >= 0


def live(service: FaultService) -> dict[str, int]:
    jobs = service.client.service_status()["jobs"]
    return {state: jobs[state] for state in ("queued", "running")}


@pytest.mark.slow
def test_row_20_what_passes_the_limit_is_refused_with_429_and_nothing_is_dropped(service: FaultService) -> None:
    sent: Counter[int] = Counter()
    accepted, ended, over = [], Counter[str](), threading.Event()

    def collect() -> None:
        after = None
        while not over.is_set():
            page = service.client.results_page(after, wait=1.0, limit=500)
            ended.update(result.job_id for result in page.results)
            after = page.next or after

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        with Client(service.url, patience=0.0) as impatient:
            for n in range(1000):
                try:
                    accepted.append(impatient.submit(wait_job("init", 0.05, job_id=f"row-20-{n}")).job_id)
                    sent[202] += 1
                except ApiError as error:
                    sent[error.status or 0] += 1
        assert eventually(lambda: len(ended) >= len(accepted), 2 * WITHIN_S), service.logs()
    finally:
        over.set()
        collector.join(WITHIN_S)
    assert sent.total() == 1000
    assert set(sent) == {202, 429}, sent
    assert {job_id: ended[job_id] for job_id in accepted} == dict.fromkeys(accepted, 1)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [600, 5000])
def test_row_19_memory_stays_flat_over_many_jobs(service: FaultService, jobs: int) -> None:
    def run(count: int) -> None:
        for start in range(0, count, 50):
            ids = [f"row-19-{jobs}-{start}-{n}-{count}" for n in range(50)]
            service.client.submit([wait_job(job_id=job_id, tags={"n": job_id}) for job_id in ids])
            service.client.wait(ids[-1], timeout=WITHIN_S)
        assert eventually(lambda: sum(live(service).values()) == 0, WITHIN_S)

    pids = [service.child(name) for name in ("init-0", "rollout-0", "rollout-1", "eval-0", "upkeep", "api")]
    run(600)  # what is made once is made
    before = {pid: rss_bytes(pid) for pid in pids}
    run(jobs)
    grown = {Path(f"/proc/{pid}/comm").read_text().strip(): (rss_bytes(pid) - before[pid]) / MB for pid in pids}
    print(f"grown over {jobs} jobs, MB: {grown}")
    assert max(grown.values()) < 8, grown
    used = service.redis.info("memory")["used_memory"] / MB
    assert used < 64, "results expire"


@pytest.mark.slow
def test_row_19_the_log_of_a_rollout_grows_with_its_turns_and_not_with_their_square(service: FaultService) -> None:
    def stored(turns: int) -> int:
        commands = [f"head -c 2000 /dev/zero | tr '\\0' {'ab'[n % 2]}" for n in range(turns)]
        [job_id] = service.submit([steps_job(*commands, steps=0, job_id=f"row-19-log-{turns}")])
        service.await_turns([job_id], turns)
        return int(service.redis.memory_usage(f"prorl:turns:{job_id}", samples=0))

    short, long = stored(5), stored(20)
    print(f"bytes of the log: {short} for 5 turns, {long} for 20")
    assert long < 8 * short
