"""Reading what went wrong and what happened: dead letters, stalled jobs, counts, each job's events."""

from __future__ import annotations

import re

from prorl_celery.errors import JobNotFound
from prorl_celery.jobs.claims import Event, Page
from prorl_celery.jobs.record import rfc3339
from prorl_celery.jobs.result_reading import ResultReader
from prorl_celery.store.clients import reaching_redis

TAIL = 50
"""Events that are read at first of a job that is followed: each look costs that much, however long the job runs."""

_CURSOR = re.compile(r"(\d{1,15})-(\d{1,9})", re.ASCII)


class HistoryReader(ResultReader):
    """Reads what the scripts noted beside the jobs' states."""

    def dead(self, limit: int = 100, cursor: str | None = None) -> Page:
        """Dead letters, the latest first: jobs that failed for a reason that another attempt might have cured, after
        their last. Raises ValueError for a cursor that is not of this list.
        """
        match = _CURSOR.fullmatch(cursor) if cursor is not None else None
        if cursor is not None and match is None:
            raise ValueError(f"{cursor[:40]!r} is not a cursor of this list")
        before, seen = (int(match[1]), int(match[2])) if match else ("+inf", 0)
        with reaching_redis():
            found = self._client.zrevrangebyscore(
                self.keys("dead"), before, "-inf", start=seen, num=limit, withscores=True
            )
        statuses = self.statuses([job.decode() for job, _ in found])
        if len(found) < limit:
            return Page(statuses, None)
        last = int(found[-1][1])
        level = sum(int(score) == last for _, score in found)
        return Page(statuses, f"{last}-{level + (seen if last == before else 0)}")

    def stalled(self, limit: int = 100) -> list[str]:
        """Running jobs that do not move, the longest first."""
        with reaching_redis():
            return [job.decode() for job in self._client.zrange(self.keys("stalled"), 0, limit - 1)]

    def counters(self) -> dict[str, int]:
        """What went wrong since the store is there, by name (`counts` of `store/keys.py`); and how many jobs are `dead`
        and `stalled` now.
        """
        with reaching_redis():
            pipe = self._client.pipeline(transaction=False)
            pipe.hgetall(self.keys("counts"))
            pipe.zcard(self.keys("dead"))
            pipe.zcard(self.keys("stalled"))
            counts, dead, stalled = pipe.execute()
        return {name.decode(): int(number) for name, number in counts.items()} | {"dead": dead, "stalled": stalled}

    def events(self, job_id: str, after: int = 0) -> list[Event]:
        """What happened to a job after the event of this number, the first first; 0: from the start, or from the oldest
        that is kept. Raises `JobNotFound`.
        """
        events = self._events(job_id, -TAIL if after else 0)
        if after and len(events) == TAIL and events[0].number > after + 1:
            events = self._events(job_id, 0)
        return [event for event in events if event.number > after]

    def _events(self, job_id: str, first: int) -> list[Event]:
        with reaching_redis():
            pipe = self._client.pipeline(transaction=False)
            pipe.hget(self.keys("job", job_id), "created")
            pipe.lrange(self.keys("events", job_id), first, -1)
            created, entries = pipe.execute()
        if created is None:
            raise JobNotFound(f"no job {job_id} was ever accepted", job_id=job_id)
        return [event_of(entry) for entry in entries]


def event_of(entry: bytes) -> Event:
    """An event as the scripts write and publish it: `<number> <ms> <what>`."""
    number, at, what = entry.decode().split(" ", 2)
    return Event(int(number), rfc3339(at), what)
