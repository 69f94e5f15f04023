"""Reading results: of one job, or all as they come in, from the stream that the finish script writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from prorl_celery.errors import JobNotFound, NotFinished, ResultExpired, StoreUnavailable
from prorl_celery.jobs.claims import ResultsPage
from prorl_celery.jobs.models import TERMINAL, Result
from prorl_celery.jobs.reading import JobReader
from prorl_celery.jobs.record import Record, decode, error_of, tags_of, timing_of
from prorl_celery.jobs.results import messages, segments, summaries, weight_bytes
from prorl_celery.jobs.turnlog import unpack_turns
from prorl_celery.jobs.turns import Turn
from prorl_celery.store.blobs import unpack_json, unseal
from prorl_celery.store.clients import BLOCK_SECONDS, reaching_redis

PAGE_BYTES = 32 << 20
"""About where a page of results ends."""

FILTERED_ENTRIES = 1000
"""Entries of the stream that one command reads where a filter may leave most of them out."""

READS = 5
"""How often a job is read that moves while it is; twice are rare."""

_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)


class ResultReader(JobReader):
    """Reads turn logs and results."""

    def turns(self, job_id: str) -> list[Turn]:
        """The turn log of the current attempt; empty before its rollout. Its last turn may be open."""
        record, blobs = self._at_once(job_id, lambda pipe: pipe.lrange(self.keys("turns", job_id), 0, -1))
        return unpack_turns(blobs) if record.get(b"log") == record.get(b"rf") else []

    def result(self, job_id: str, tokens: bool = True) -> Result:
        """The result of an ended job; without `tokens` it has no segments.

        Raises: `JobNotFound`, `NotFinished`, `ResultExpired`.
        """
        return self._result(job_id, tokens)[0]

    def results(
        self,
        after: str | None = None,
        limit: int = 100,
        max_bytes: int = PAGE_BYTES,
        tag: tuple[str, str] | None = None,
        batch_id: str | None = None,
    ) -> ResultsPage:
        """Results in order of finishing from a cursor on (None: the oldest kept), each at least once.

        A page ends at `limit` or at about `max_bytes` of JSON, but holds one result at least where there is one.
        Raises ValueError for a cursor that is not of this stream.
        """
        with reaching_redis():
            trimmed = (self._client.get(self.keys("results", "trimmed")) or b"0-0").decode()
        truncated = after is not None and place(after) < place(trimmed)
        at, size = after or trimmed, 0
        count = limit if tag is None and batch_id is None else max(limit, FILTERED_ENTRIES)
        taken: list[Result] = []
        while True:
            with reaching_redis():
                entries = self._client.xrange(self.keys("results"), f"({at}", "+", count=count)
            for entry, fields in entries:
                if _wanted(fields, tag, batch_id):
                    if len(taken) == limit:
                        return ResultsPage(taken, at, truncated)
                    try:
                        result, weight = self._result(fields[b"job"].decode(), tokens=True)
                    except (JobNotFound, NotFinished, ResultExpired):
                        at = entry.decode()  # expired meanwhile, and perhaps the id is in use anew
                        continue
                    if taken and size + weight > max_bytes:
                        return ResultsPage(taken, at, truncated)
                    taken.append(result)
                    size += weight
                at = entry.decode()
            if len(entries) < count or len(taken) == limit:
                return ResultsPage(taken, at, truncated)

    def wait_results(self, after: str | None, timeout: float) -> bool:
        """Wait until a job has ended after this cursor; False when none did within `timeout` seconds (at most 60)."""
        start = after or "0-0"
        place(start)
        block_ms = max(1, round(min(timeout, BLOCK_SECONDS) * 1000))
        with reaching_redis():
            return bool(self._blocking.xread({self.keys("results"): start}, count=1, block=block_ms))

    def _result(self, job_id: str, tokens: bool) -> tuple[Result, int]:
        """A result, and about how many bytes it takes as JSON."""

        def what_it_left(pipe: Any) -> None:
            pipe.hmget(self.keys("data", job_id), "spec", "summary", "rollout")
            pipe.lrange(self.keys("turns", job_id), 0, -1)

        raw, (spec, summary, rollout), blobs = self._at_once(job_id, what_it_left)
        if not raw:
            raise JobNotFound(f"no job {job_id} was ever accepted", job_id=job_id)
        record = decode(raw)
        if record["state"] not in TERMINAL:
            raise NotFinished(f"{job_id} is {record['state']}", job_id=job_id)
        if spec is None:
            raise ResultExpired(f"the result of {job_id} is no longer kept", job_id=job_id)
        turns = unpack_turns(blobs) if record.get("log") == record.get("rf") else []
        said = None if summary is None else unseal(summary)
        result = _assemble(job_id, record, turns, _summary(said, rollout), tokens)
        return result, weight_bytes(turns, said or b"")

    def _at_once(self, job_id: str, ask: Callable[[Any], Any]) -> list[Any]:
        """The job's record and what `ask` puts into the pipeline, all of one moment between the steps of its life.

        Not by a transaction, which a Redis that is full refuses even for reading: it must still give results away.
        """
        for _ in range(READS):
            with reaching_redis():
                pipe = self._client.pipeline(transaction=False)
                pipe.hgetall(self.keys("job", job_id))
                ask(pipe)
                pipe.hget(self.keys("job", job_id), "last")
                record, *found, last = pipe.execute()
            if record.get(b"last") == last:
                return [record, *found]
        raise StoreUnavailable(f"{job_id} moved each of {READS} times that it was read", job_id=job_id)


def place(cursor: str) -> tuple[int, int]:
    """A cursor of the results stream as numbers that can be compared. Raises ValueError for what is none."""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise ValueError(f"{cursor[:40]!r} is not a cursor of the results")
    return int(match[1]), int(match[2])


def _assemble(job_id: str, record: Record, turns: list[Turn], summary: Mapping[str, Any], tokens: bool) -> Result:
    resolved = record.get("resolved")
    return Result.model_construct(
        job_id=job_id,
        state=record["state"],
        reward=float(record["reward"]) if "reward" in record else None,
        resolved=None if resolved is None else resolved == "1",
        finish_reason=record["reason"],
        messages=messages(turns),
        segments=segments(turns) if tokens else [],
        turns=summaries(turns),
        artifacts=summary.get("artifacts") or {},
        eval=summary.get("eval") or {},
        timing=timing_of(record),
        error=error_of(record),
        attempt=int(record["attempt"]),
        instance_id=record.get("iid"),
        tags=tags_of(record),
    )


def _summary(summary: bytes | None, rollout: bytes | None) -> Mapping[str, Any]:
    """Artifacts and eval; for a job that ended without a word of its worker, what its rollout left."""
    if summary is not None:
        return dict(json.loads(summary))
    output = unpack_json(rollout) if rollout is not None else None
    artifacts = output.get("artifacts") if isinstance(output, dict) else None
    return {"artifacts": artifacts} if isinstance(artifacts, dict) else {}


def _wanted(fields: Mapping[bytes, bytes], tag: tuple[str, str] | None, batch_id: str | None) -> bool:
    if batch_id is not None and fields.get(b"batch") != batch_id.encode():
        return False
    return tag is None or json.loads(fields.get(b"tags", b"{}")).get(tag[0]) == tag[1]
