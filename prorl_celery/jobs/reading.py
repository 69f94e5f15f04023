"""Reading jobs: statuses, pages, counts. Nothing here writes.

Reads go straight to the keys (`store/keys.py`) in one command or one pipeline each.
"""

from __future__ import annotations

import builtins
import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import redis

from prorl_celery.errors import JobNotFound
from prorl_celery.jobs.claims import Page
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import STAGES, TERMINAL, JobStatus, State
from prorl_celery.jobs.record import decode, status_of
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client, reaching_redis
from prorl_celery.store.keys import Keys
from prorl_celery.store.room import Room
from prorl_celery.store.scripts import Scripts

ENDED: tuple[State, ...] = ("completed", "failed", "cancelled", "timed_out")
LIVE: tuple[State, ...] = ("queued", "running")
LEVELS = (0, 3, 6, 9)


class JobReader:
    """Reads statuses. Given a client for scripts and the settings."""

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        *,
        blocking: redis.Redis | None = None,
        publish: Callable[[Sequence[Message]], None] | None = None,
    ) -> None:
        """`blocking` serves `wait_results`; by default a client of the same url. `publish` takes the messages of jobs
        that a batch starts when one of its jobs ends; without it the sweep finds them.
        """
        self.keys = Keys(settings.key_prefix)
        # Any: the client's types do not say that all of ours give bytes.
        self._client: Any = client
        self._settings = settings
        self._run = Scripts(client, settings, born=publisher_of(publish)).run
        self._room = Room(client)
        self._blocking: Any = blocking or blocking_client(settings)

    def status(self, job_id: str) -> JobStatus:
        """Where a job stands. An ended job's id is known for longer than its result. Raises `JobNotFound`."""
        with reaching_redis():
            raw = self._client.hgetall(self.keys("job", job_id))
        if not raw:
            raise JobNotFound(f"no job {job_id} was ever accepted", job_id=job_id)
        return status_of(job_id, decode(raw), self._now_ms([raw]))

    def statuses(self, job_ids: Sequence[str]) -> builtins.list[JobStatus]:
        """The statuses of these jobs, in this order; unknown ids are left out."""
        if not job_ids:
            return []
        with reaching_redis():
            pipe = self._client.pipeline(transaction=False)
            for job_id in job_ids:
                pipe.hgetall(self.keys("job", job_id))
            records = pipe.execute()
        now_ms = self._now_ms(records)
        return [status_of(job_id, decode(raw), now_ms) for job_id, raw in zip(job_ids, records, strict=True) if raw]

    def list(
        self,
        state: State | None = None,
        tag: tuple[str, str] | None = None,
        batch_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """A page of statuses, newest first. `tag` is a name and a value.

        A page may hold fewer than `limit` where filters leave jobs out; `next` is None only at the end.
        Raises ValueError for a cursor that is not of this list.
        """
        before = "+inf"
        if cursor is not None:
            if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 15:
                raise ValueError(f"{cursor[:40]!r} is not a cursor of this list")
            before = f"({cursor}"
        indexes = [self.keys("batch", batch_id)] if batch_id is not None else self._indexes(state)
        with reaching_redis():
            pipe = self._client.pipeline(transaction=False)
            for index in indexes:
                pipe.execute_command("ZREVRANGEBYSCORE", index, before, "-inf", "WITHSCORES", "LIMIT", 0, limit)
            found = pipe.execute()
        newest = heapq.nlargest(limit, {(int(score), job.decode()) for part in found for job, score in _pairs(part)})
        statuses = [
            status
            for status in self.statuses([job_id for _, job_id in newest])
            if (state is None or status.state == state) and (tag is None or status.tags.get(tag[0]) == tag[1])
        ]
        return Page(statuses, str(newest[-1][0]) if newest and len(newest) == limit else None)

    def counts(self) -> dict[str, int]:
        """Jobs by state (all that are kept), and live jobs by stage under `init`, `rollout` and `eval`."""
        live = [(state, stage) for state in LIVE for stage in STAGES]
        numbers = self._run("counts", *(f"{state}:{stage}" for state, stage in live), *ENDED)
        counts: dict[str, int] = dict.fromkeys((*LIVE, *STAGES), 0)
        for (state, stage), number in zip(live, numbers, strict=False):
            counts[state] += number
            counts[stage] += number
        return counts | dict(zip(ENDED, numbers[len(live) :], strict=True))

    def queue_depths(self, queues: Sequence[str]) -> dict[str, int]:
        """Jobs that wait in each of these queues."""
        if not queues:
            return {}
        with reaching_redis():
            pipe = self._client.pipeline(transaction=False)
            for queue in queues:
                for level in LEVELS:
                    pipe.zcard(self.keys("queued", str(level), queue))
            numbers = pipe.execute()
        width = len(LEVELS)
        return {queue: sum(numbers[i * width : (i + 1) * width]) for i, queue in enumerate(queues)}

    def ended(self, job_ids: Collection[str]) -> set[str]:
        """Which of these jobs have ended. One that is not known has not."""
        ids = list(job_ids)
        with reaching_redis():
            pipe = self._client.pipeline(transaction=False)
            for job in ids:
                pipe.hget(self.keys("job", job), "state")
            states = pipe.execute() if ids else []
        return {job for job, state in zip(ids, states, strict=True) if state and state.decode() in TERMINAL}

    def live_on(self, node: str) -> dict[str, tuple[int, frozenset[str]]]:
        """Jobs that run on a node, or wait for its own queues: the fence of each one's latest claim, and the sandboxes
        that were committed for it.
        """
        with reaching_redis():
            jobs = [job.decode() for job in self._client.smembers(self.keys("on", node))]
            pipe = self._client.pipeline(transaction=False)
            for job in jobs:
                pipe.hmget(self.keys("job", job), "fence", "sandboxes")
            records = pipe.execute() if jobs else []
        return {
            job: (int(fence), frozenset((sandboxes or b"").decode().split()))
            for job, (fence, sandboxes) in zip(jobs, records, strict=True)
            if fence
        }

    def _now_ms(self, records: Sequence[Mapping[bytes, bytes]]) -> int | None:
        """The server's time, where one of these jobs is stalled: for how long depends on it."""
        if not any(b"stall" in raw for raw in records):
            return None
        with reaching_redis():
            seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def _indexes(self, state: State | None) -> builtins.list[str]:
        if state in TERMINAL:
            return [self.keys("index", str(state))]
        states = LIVE if state is None else (state,)
        indexes = [self.keys("index", one, stage) for one in states for stage in STAGES]
        return indexes + ([self.keys("index", one) for one in ENDED] if state is None else [])


def _pairs(reply: builtins.list[Any]) -> builtins.list[tuple[bytes, float]]:
    """Members and scores, which clients give in pairs or flat."""
    if reply and isinstance(reply[0], bytes):
        return list(zip(reply[::2], reply[1::2], strict=True))
    return [(member, score) for member, score in reply]
