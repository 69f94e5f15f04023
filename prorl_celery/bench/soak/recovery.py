"""What a kill hit, and how long until each of those jobs was at work again."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.models import TERMINAL
from prorl_celery.store.clients import reaching_redis
from prorl_celery.store.keys import Keys

FIELDS = ("state", "stage", "fence", "active", "process", "backend", "nturns", "sandboxes", "attempt", "log", "rf")
EVERY_S = 0.05


@dataclass(slots=True)
class Hit:
    """A job that a kill met, as its record was then. `seconds`: until its next claim, turn, commit or end."""

    job_id: str
    victim: str
    at: float
    fence: int
    active: str
    turns: int
    attempt: int
    seconds: float | None = None


@dataclass(slots=True)
class Jobs:
    """The records of live jobs, read past the API. Raises `StoreUnavailable`."""

    client: Any
    keys: Keys

    def live(self, node: str) -> dict[str, dict[str, str]]:
        """The jobs that run on a node or wait for its queues, by id."""
        with reaching_redis():
            ids = [job.decode() for job in self.client.smembers(self.keys("on", node))]
        return self.records(ids)

    def records(self, ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """The fields of these jobs that matter here."""
        with reaching_redis():
            pipe = self.client.pipeline(transaction=False)
            for job_id in ids:
                pipe.hmget(self.keys("job", job_id), *FIELDS)
            found = pipe.execute() if ids else []
        return {
            job_id: {name: (value or b"").decode() for name, value in zip(FIELDS, values, strict=True)}
            for job_id, values in zip(ids, found, strict=True)
        }


@dataclass(slots=True)
class Watcher:
    """Follows hit jobs on a thread of its own. A job that is hit again while it is followed is followed from both."""

    jobs: Jobs
    hits: list[Hit] = field(default_factory=list)
    _open: list[Hit] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def follow(self, hits: Sequence[Hit]) -> None:
        with self._lock:
            self.hits += hits
            self._open += hits

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            with self._lock:
                followed = list(self._open)
            if not followed:
                continue
            try:
                records = self.jobs.records(sorted({hit.job_id for hit in followed}))
            except StoreUnavailable:
                continue  # Redis is away: nobody is at work again
            now = time.monotonic()
            for hit in followed:
                if at_work(records[hit.job_id], hit):
                    hit.seconds = now - hit.at
            with self._lock:
                self._open = [hit for hit in self._open if hit.seconds is None]


def hit_of(job_id: str, record: dict[str, str], victim: str, at: float) -> Hit:
    """A job as it was when its victim was killed."""
    attempt = int(record["attempt"] or 1)
    # Of a job that starts over the record still counts the turns of the log that its next rollout replaces.
    turns = int(record["nturns"] or 0) if record["log"] == record["rf"] else 0
    return Hit(job_id, victim, at, int(record["fence"]), record["active"], turns, attempt)


def at_work(record: dict[str, str], hit: Hit) -> bool:
    """Whether a job was claimed, came further or ended since it was hit."""
    if record["state"] in TERMINAL:
        return True
    moved = int(record["fence"] or 0) > hit.fence or int(record["active"] or 0) > int(hit.active or 0)
    return record["state"] == "running" and moved
