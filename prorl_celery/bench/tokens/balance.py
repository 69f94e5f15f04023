"""How evenly the backend heap spreads live jobs, and what a backend costs.

The real registry on a real Redis, in virtual time: jobs come as a Poisson process, 256 live on average, of log-normal
lengths, and take and give back their backends in the order of these events. (A closed loop, in which the next job comes
when one ends, is even by construction and proves nothing.) Beside it, on the same jobs, a heap of lifetime counts, as
the paper has it, and choice at random.

    balance        highest over mean live load of 8 backends, averaged over time
    late joiner    the largest part of any 128 jobs in a row that went to a backend that joined late, over its share
"""

from __future__ import annotations

import heapq
import math
import random
import subprocess
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prorl_celery.bench.report import BenchFailed, Report
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobRequest
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.redis_server import RedisServer, find_server
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import script_client
from prorl_celery.testing.monitor import CommandCount

FIGURES = (
    "balance_max_over_mean",
    "lifetime_heap_max_over_mean",
    "random_max_over_mean",
    "late_joiner_share",
    "late_joiner_share_lifetime_heap",
)
COST_FIGURES = ("acquires_per_s", "commands_per_acquire", "script_commands_per_acquire")

BACKENDS = 8
LIVE = 256
"""Live jobs on average."""
SIGMA = 1.0
"""Of the logarithm of a job's length; the mean length is 1."""
WARM_UP = 4.0
"""Mean lengths of jobs before anything is counted: until as many jobs are live as will be."""
WINDOW = 16 * BACKENDS
THREADS = 16
AHEAD = 200
"""Jobs created by one command."""


class Pool:
    """Who gives jobs their backends: `take` gives the index of one, `give_back` ends the job that was given it."""

    def take(self, up: int) -> int:
        """A backend below `up` for a new job."""
        raise NotImplementedError

    def give_back(self, index: int) -> None:
        """One of that backend's jobs has ended."""


class LifetimeHeap(Pool):
    """The backend that was given the fewest jobs so far; who joins starts at nothing."""

    def __init__(self) -> None:
        self._given = Counter[int]()

    def take(self, up: int) -> int:
        index = min(range(up), key=lambda i: self._given[i])
        self._given[index] += 1
        return index


class Dice(Pool):
    """Any backend."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def take(self, up: int) -> int:
        return self._dice.randrange(up)


class Heap(Pool):
    """The registry. Jobs are created, claimed and finished as the service does it."""

    def __init__(self, settings: Settings, name: str) -> None:
        client = script_client(settings)
        self._store = JobStore(client, settings)
        self.registry = BackendRegistry(client, settings)
        self._name = name
        self._up = 0
        self._made = 0
        self._fresh: deque[str] = deque()
        self._at: dict[int, deque[Claim]] = {}

    def take(self, up: int) -> int:
        while self._up < up:
            self.join()
        claim = self.claim()
        got = self.registry.acquire(claim.job_id, claim.fence, model=self._name, mode="tokens")
        if got is None:
            raise BenchFailed("no backend was given")
        index = int(got.url.rpartition("-")[2])
        self._at[index].append(claim)
        return index

    def join(self) -> None:
        """Register one more backend."""
        fields = {"url": f"http://{self._name}-{self._up}", "model": self._name, "gives_ids": True}
        self.registry.put(Backend.model_validate(fields))
        self._at[self._up] = deque()
        self._up += 1

    def give_back(self, index: int) -> None:
        # Which of its jobs is all the same to the heap.
        self._store.finish(self._at[index].popleft(), state="failed", finish_reason="error", worked_s=0)

    def claim(self) -> Claim:
        """A new job, claimed."""
        if not self._fresh:
            ids = [f"{self._name}-{number}" for number in range(self._made, self._made + AHEAD)]
            self._store.create([_job(job_id) for job_id in ids])
            self._fresh.extend(ids)
            self._made += AHEAD
        claim = self._store.claim("init", self._fresh.popleft(), 0, node="bench", process="bench", op="claim")
        if claim is None:
            raise BenchFailed("a new job could not be claimed")
        return claim

    def live(self) -> list[int]:
        """The registry's own counts."""
        return [one.assigned for one in self.registry.list() if one.model == self._name]


@dataclass(slots=True)
class Seen:
    """What a run came to. `given`: who got each job, from the joining (or the warm-up's end) on."""

    max_over_mean: float = math.nan
    given: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)

    def largest_share(self, index: int) -> float:
        """The largest part of `WINDOW` jobs in a row that went to a backend, over an even share."""
        mine = [int(one == index) for one in self.given]
        if len(mine) < WINDOW:
            raise BenchFailed(f"{len(mine)} jobs are too few for a window of {WINDOW}")
        inside: int = sum(mine[:WINDOW])
        most = inside
        for leaves, enters in zip(mine, mine[WINDOW:], strict=False):
            inside += enters - leaves
            most = max(most, inside)
        return most / WINDOW * BACKENDS


def simulate(pool: Pool, jobs: int, seed: int, *, joins_late: bool = False) -> Seen:
    """Let `jobs` jobs come after the warm-up. With `joins_late` the last backend is there only from then on."""
    dice = random.Random(seed)
    mu = -SIGMA * SIGMA / 2  # so that the mean is 1
    live = [0] * BACKENDS
    ends: list[tuple[float, int]] = []
    seen = Seen()
    now = weighed = total = 0.0
    came = 0
    while came < jobs:
        arrival = now + dice.expovariate(LIVE)
        length = dice.lognormvariate(mu, SIGMA)
        while True:
            until = min(arrival, ends[0][0]) if ends else arrival
            alive = sum(live)
            if now >= WARM_UP and alive:
                weighed += (until - now) * max(live) / (alive / BACKENDS)
                total += until - now
            now = until
            if until == arrival:
                break
            _, index = heapq.heappop(ends)
            pool.give_back(index)
            live[index] -= 1
        warm = now >= WARM_UP
        index = pool.take(BACKENDS - 1 if joins_late and not warm else BACKENDS)
        live[index] += 1
        heapq.heappush(ends, (now + length, index))
        if warm:
            came += 1
            seen.given.append(index)
    seen.live = live
    seen.max_over_mean = weighed / total
    return seen


def balance(report: Report, settings: Settings, jobs: int, seed: int = 7) -> None:
    """Take `FIGURES`. Raises `BenchFailed` when the registry's counts are not those of the live jobs."""

    def ours(name: str, *, joins_late: bool) -> Seen:
        pool = Heap(settings, name)
        seen = simulate(pool, jobs, seed, joins_late=joins_late)
        if pool.live() != seen.live:
            raise BenchFailed(f"the registry counts {pool.live()} live jobs, there are {seen.live}")
        return seen

    report.figures["balance_max_over_mean"] = ours("even", joins_late=False).max_over_mean
    report.figures["lifetime_heap_max_over_mean"] = simulate(LifetimeHeap(), jobs, seed).max_over_mean
    report.figures["random_max_over_mean"] = simulate(Dice(seed), jobs, seed).max_over_mean
    late = BACKENDS - 1
    report.figures["late_joiner_share"] = ours("late", joins_late=True).largest_share(late)
    lifetime = simulate(LifetimeHeap(), jobs, seed, joins_late=True)
    report.figures["late_joiner_share_lifetime_heap"] = lifetime.largest_share(late)


def costs(report: Report, settings: Settings, acquires: int) -> None:
    """Take `COST_FIGURES`: each acquire gives a job another backend than it has, so that all of it is done."""
    pool = Heap(settings, "cost")
    for _ in range(BACKENDS):
        pool.join()
    claims = [pool.claim() for _ in range(THREADS)]

    def change(claim: Claim, times: int) -> None:
        exclude: list[str] = []
        for _ in range(times):
            got = pool.registry.acquire(claim.job_id, claim.fence, model="cost", mode="tokens", exclude=exclude)
            exclude = [got.url] if got else []

    each = max(1, acquires // THREADS)
    with ThreadPoolExecutor(THREADS) as threads:
        _all(threads, lambda claim: change(claim, 2), claims)
        began = time.monotonic()
        _all(threads, lambda claim: change(claim, each), claims)
        report.figures["acquires_per_s"] = each * THREADS / (time.monotonic() - began)
        with CommandCount(settings.redis_url) as count:
            _all(threads, lambda claim: change(claim, 10), claims)
    report.figures["commands_per_acquire"] = count.client_commands / (10 * THREADS)
    report.figures["script_commands_per_acquire"] = count.script_commands / (10 * THREADS)


@contextmanager
def own_redis() -> Iterator[Settings]:
    """Settings that name a Redis as a service's own is, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="prorl-bench-redis-") as folder:
        server = RedisServer(find_server(), Path(folder) / "data", Path(folder) / "r.sock")
        process = subprocess.Popen(server.command().argv, stdout=subprocess.DEVNULL)
        try:
            if not server.wait_ready():
                raise BenchFailed("Redis did not start")
            yield Settings(redis_url=server.url, node="bench", lease_seconds=3600.0)
        finally:
            process.terminate()
            process.wait(30)


def _all(threads: ThreadPoolExecutor, act: Callable[[Claim], None], claims: Sequence[Claim]) -> None:
    for _ in threads.map(act, claims):
        pass


def _job(job_id: str) -> JobRequest:
    return JobRequest.model_validate({"job_id": job_id, "instance": {"data_source": "noop"}})
