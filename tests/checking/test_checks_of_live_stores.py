"""A store in motion is sound: a check beside workers finds nothing, and what is mended beside them harms no job."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import pytest
import redis
from checking_help import URL, node
from redis_fixtures import request

from prorl_celery.checking import check, checker, repair
from prorl_celery.errors import FenceLost, ProrlError
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import TERMINAL, JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings

WORKERS = 6
JOBS = 150
ERROR = JobError(kind="backend", stage="rollout", message="broke", retryable=True)


class Fleet:
    """Threads that do to jobs all that workers do, over a queue of their own in the broker's place."""

    def __init__(self, store: JobStore, backends: BackendRegistry, jobs: int) -> None:
        self._store, self._backends = store, backends
        self._queue: SimpleQueue[Message] = SimpleQueue()
        self._left = {f"j{number}" for number in range(jobs)}
        self._lock = threading.Lock()
        self.over = threading.Event()
        self.errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(WORKERS)]

    def __enter__(self) -> Fleet:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(30)

    def publish_all(self, messages: list[Message]) -> None:
        for message in messages:
            self._queue.put(message)

    def _work(self, number: int) -> None:
        chance = random.Random(number)
        while not self.over.is_set():
            try:
                message = self._queue.get(timeout=0.1)
            except Empty:
                continue
            try:
                following = self._step(message, chance, f"n1 b1 rollout-{number} x")
            except FenceLost:
                following = None  # a cancel came first
            except (ProrlError, redis.RedisError, AssertionError) as error:
                self.errors.append(error)
                self.over.set()
                return
            if following is None:
                self._count_down(message.job_id)
            else:
                self._queue.put(following)

    def _step(self, message: Message, chance: random.Random, process: str) -> Message | None:
        store, op = self._store, f"{chance.random()}"
        got = store.claim(message.stage, message.job_id, message.fence, node="n1", process=process, op=op)
        if got is None:
            return None
        if chance.random() < 0.1:
            return store.hand_back(got, worked_s=0.1, waited_s=0)
        if chance.random() < 0.05:
            store.cancel(got.job_id)
        if got.stage == "rollout":
            assert self._backends.acquire(got.job_id, got.fence, model="m", mode=None)
            for index in range(len(store.turns(got.job_id)) if got.going_on else 0, 4):
                store.append_turn(got, Turn(index=index))
            if chance.random() < 0.2:
                return store.fail(got, ERROR, worked_s=0.1)
        if got.stage == "eval":
            store.finish(got, state="completed", finish_reason="stop", reward=1.0, worked_s=0.1)
            return None
        following = "rollout" if got.stage == "init" else "eval"
        return store.commit(got, {}, next_stage=following, queue=following, worked_s=0.1)

    def _count_down(self, job_id: str) -> None:
        with self._lock:
            if self._store.status(job_id).state in TERMINAL:
                self._left.discard(job_id)
            if not self._left:
                self.over.set()


@pytest.fixture
def fleet(redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings) -> Iterator[Fleet]:
    node(redis_client, redis_settings)
    backends = BackendRegistry(redis_client, redis_settings)
    backends.put(Backend(url=URL, model="m"))
    created = redis_store.create([request(f"j{number}") for number in range(JOBS)])
    with Fleet(redis_store, backends, JOBS) as fleet:
        fleet.publish_all([one.message for one in created if one.message])
        yield fleet


@pytest.fixture(autouse=True)
def looks_a_moment_apart(quick_looks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SETTLE_SECONDS", 0.05)


def test_a_store_in_motion_is_sound(fleet: Fleet, redis_client: redis.Redis, redis_settings: Settings) -> None:
    looks = 0
    while not fleet.over.wait(0.01):
        assert check(redis_client, redis_settings) == []
        looks += 1
    assert fleet.errors == []
    assert looks > 3
    assert check(redis_client, redis_settings) == []


def test_mending_beside_workers_harms_no_job(
    fleet: Fleet, redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings
) -> None:
    chance = random.Random(7)
    found = 0
    while not fleet.over.wait(0.01):
        job = f"j{chance.randrange(JOBS)}"
        key = chance.choice(["index:queued:init", "index:running:rollout", "on:n1", "queued:3:eval", "assigned:" + URL])
        if key.startswith(("on:", "assigned:")):
            redis_client.srem(f"prorl:{key}", job)
            redis_client.sadd(f"prorl:{key}", "nobody")
        else:
            redis_client.zrem(f"prorl:{key}", job)
            redis_client.zadd(f"prorl:{key}", {"nobody": 1})
        findings = check(redis_client, redis_settings)
        found += len(findings)
        assert repair(findings, redis_client, redis_settings, publisher=fleet) == []
    assert fleet.errors == []
    assert found > 3
    assert repair(check(redis_client, redis_settings), redis_client, redis_settings, publisher=fleet) == []
    counts = redis_store.counts()
    assert counts["completed"] + counts["failed"] + counts["cancelled"] == JOBS
