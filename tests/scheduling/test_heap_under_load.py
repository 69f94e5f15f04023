"""Threads take and give back backends while Redis forgets its scripts and stands still: the count is exact."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import redis
from redis_fixtures import request

from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.redis_server import wait_for_redis
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import script_client

T = TypeVar("T")
THREADS = 64
NAMES = "abcdefgh"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Redis of this test's own, which it may stop."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server on the PATH")
    command = [binary, "--port", "0", "--unixsocket", str(tmp_path / "r.sock"), "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def surely(call: Callable[[], T]) -> T:
    """Repeat a call, as may be done with every one of the store's, until Redis has answered."""
    for _ in range(20):
        with contextlib.suppress(StoreUnavailable):
            return call()
    raise AssertionError("Redis never answered")


@pytest.mark.parametrize(
    ("acquires", "stall_seconds"), [(2_000, 1.0), pytest.param(20_000, 8.0, marks=pytest.mark.slow)]
)
def test_the_count_is_exact(
    server: subprocess.Popen[bytes], tmp_path: Path, acquires: int, stall_seconds: float
) -> None:
    settings = Settings(redis_url=f"unix://{tmp_path}/r.sock", node="n1", lease_seconds=600)
    wait_for_redis(settings.redis_url, 10.0)
    client = script_client(settings)
    store, registry = JobStore(client, settings), BackendRegistry(client, settings)
    for name in NAMES:
        registry.put(Backend(url=f"http://{name}", model="m", gives_ids=True))
    store.create([request(f"j{thread}") for thread in range(THREADS)])
    rounds = -(-acquires // THREADS)
    done, over = Counter[str](), threading.Event()

    def work(thread: int) -> tuple[str, str]:
        job_id, fence = f"j{thread}", 0

        def begin(fence: int, op: str) -> Claim:
            got = surely(lambda: store.claim("init", job_id, fence, node="n1", process="p", op=op))
            assert got is not None
            return got

        for number in range(rounds):
            claim = begin(fence, f"{thread}-{number}")
            url = surely(partial(take, claim))
            assert surely(partial(take, claim)) == url
            done[job_id] += 1
            if number + 1 < rounds:
                fence = surely(partial(store.hand_back, claim, waited_s=0)).fence
        return job_id, url

    def take(claim: Claim) -> str:
        got = registry.acquire(claim.job_id, claim.fence, model="m", mode="tokens")
        assert got is not None
        return got.url

    def disturb() -> None:
        while not over.is_set() and done.total() < acquires // 2:
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                client.script_flush()
            over.wait(0.02)
        server.send_signal(signal.SIGSTOP)
        over.wait(stall_seconds)
        server.send_signal(signal.SIGCONT)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            kept = list(pool.map(work, range(THREADS)))
    finally:
        over.set()
        disturber.join()
    assert done.total() == rounds * THREADS >= acquires
    count = Counter(url for _, url in kept)
    listed = {one.url: one.assigned for one in registry.list()}
    assert listed == {f"http://{name}": count[f"http://{name}"] for name in NAMES}
    for url in listed:
        assert client.smembers(f"prorl:assigned:{url}") == {job.encode() for job, at in kept if at == url}
        assert client.zscore("prorl:heap:m", url) == count[url]
    assert registry.recount() == 0
    client.close()
