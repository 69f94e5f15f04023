"""The baseline of pipeline overhead: a bare Celery chain of three no-op tasks, on the same Redis server.

Nothing of ours is in it: no store, no claim, no HTTP. It is Celery at its quickest for such tasks on two cores, by
measurement: prefork with two processes, results ignored, early acknowledgement, default prefetch, no gossip, mingle or
heartbeat, JSON, hiredis, messages of a chain published over one pooled connection. The client keeps `WINDOW` chains in
flight; the last task of a chain pushes one byte to a list on which the client blocks.

    python -P -m prorl_celery.bench.chains BROKER_URL      the worker, until SIGTERM
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from celery import Celery
from celery.canvas import Signature, chain

from prorl_celery.bench.report import BenchFailed
from prorl_celery.node import prctl
from prorl_celery.store.address import broker_url

DATABASE = 1
"""Of the Redis server: the service has 0."""
DONE = "bench:done"
WINDOW = 32
PROCESSES = 2
READY_SECONDS = 30.0
STOP_SECONDS = 10.0


def bare_app(url: str) -> Celery:
    """The application; `url` is the Redis server's, as redis-py writes it. Its tasks: `bare.noop`, `bare.last`."""
    app = Celery("bare", broker=broker_url(url), set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
    client = redis.Redis.from_url(url)

    def noop() -> None:
        pass

    def last() -> None:
        client.lpush(DONE, b"1")

    app.task(noop, name="bare.noop")
    app.task(last, name="bare.last")
    return app


class BareChains:
    """Runs chains through a worker. Given the url of the baseline's database."""

    def __init__(self, url: str) -> None:
        app = bare_app(url)
        self._client = redis.Redis.from_url(url, socket_timeout=60.0)
        self._chain: Signature = chain(*(app.signature(f"bare.{name}", immutable=True) for name in ("noop",) * 2))
        self._chain |= app.signature("bare.last", immutable=True)

    def rate(self, count: int, *, seconds: float) -> float:
        """Chains per second over `count` of them. Raises `BenchFailed` when they take longer than `seconds`."""
        self._client.delete(DONE)
        began = time.monotonic()
        sent = done = 0
        while done < count:
            while sent < count and sent - done < WINDOW:
                self._chain.apply_async()
                sent += 1
            left = began + seconds - time.monotonic()
            if left <= 0 or self._client.brpop([DONE], timeout=min(left, 30.0)) is None:
                raise BenchFailed(f"{done} of {count} bare chains within {seconds:g} s")
            # What has come besides, without a round trip each.
            done += 1 + len(self._client.rpop(DONE, WINDOW) or ())
        return count / (time.monotonic() - began)

    def close(self) -> None:
        self._client.close()


@contextmanager
def bare_chains(redis_url: str) -> Iterator[BareChains]:
    """A worker for the time of the block, on another database of the server at `redis_url`. Raises `BenchFailed`."""
    url = f"{redis_url.partition('?')[0]}?db={DATABASE}"
    us = os.getpid()
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "prorl_celery.bench.chains", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: prctl.die_with_parent(us, signal.SIGTERM),
    )
    chains = BareChains(url)
    try:
        chains.rate(1, seconds=READY_SECONDS)
        yield chains
    finally:
        chains.close()
        worker.terminate()
        try:
            worker.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(STOP_SECONDS)


def main() -> int:
    """Run the worker on the Redis server that the first argument names."""
    flags = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    bare_app(sys.argv[1]).worker_main(["worker", "--pool=prefork", f"--concurrency={PROCESSES}", *flags])
    return 0


if __name__ == "__main__":
    sys.exit(main())
