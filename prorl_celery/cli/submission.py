"""Submitting many jobs and collecting their results: bounded in flight, resumable, patient with a busy
service.

Given jobs (an iterator: a large file is never held whole) and a result file, `Submission.run` yields each
result's facts as it is written. One thread: it submits a chunk while there is room, then reads what has
finished.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from prorl_celery.cli.api import Api
from prorl_celery.cli.resultfile import ResultFile, without_trajectory
from prorl_celery.errors import ApiError, ApiUnavailable
from prorl_celery.jobs.models import TERMINAL

CHUNK = 100
"""Jobs in one call."""
CHUNK_BYTES = 4 << 20
"""About where a call with large instances ends; one job goes whatever its size."""
PAGE = 100
TICK_S = 1.0
"""Longest wait for results in one call, so that a progress display moves."""
HOLD_S = 2.0
"""How long no more is submitted after the service said that it is full or away."""
DOUBT_S = 20.0
"""Without any result for so long, the oldest jobs are asked for one by one: the stream may have been cut."""
ASKED_AT_ONCE = 20


class Submission:
    """One run over some jobs. `inflight`: most jobs submitted and not yet ended."""

    def __init__(self, api: Api, out: ResultFile, jobs: Iterable[dict[str, Any]], *, inflight: int) -> None:
        self._api = api
        self._sender = api.with_patience(0.0)  # while it is full, results are read
        self._out = out
        self._limit = inflight
        self._written = {result["job_id"] for result in out.results}
        self._jobs = (job for job in jobs if job["job_id"] not in self._written)
        self._chunk: list[dict[str, Any]] = []
        self._live: dict[str, None] = {}
        self._hold_until = 0.0

    @property
    def live(self) -> int:
        """Jobs submitted whose results have not come."""
        return len(self._live)

    def run(self) -> Iterator[dict[str, Any] | None]:
        """Yield each result without its trajectory, and None now and then while nothing comes.

        Raises `ApiError` when the service refuses a job or is gone for longer than the Api's patience.
        """
        after = self._out.cursor
        last = time.monotonic()
        while self._fill() or self._live:
            ended = self._submit() if self._may_submit() else []
            yield from self._take(ended)
            more = self._may_submit() and bool(self._fill())
            if not self._live and not self._held():
                yield None
                continue
            page = self._api.get("v1", "results", after=after, wait=0 if more else TICK_S, limit=PAGE, tag=self._tag)
            after = page["next"] or after
            taken = list(self._take(page["results"]))
            self._out.flush(after)
            yield from taken
            if taken or ended:
                last = time.monotonic()
            elif time.monotonic() - last > DOUBT_S:
                yield from self._take(self._asked_for())
                last = time.monotonic()
            if not taken:
                yield None

    def _fill(self) -> list[dict[str, Any]]:
        """The next chunk; empty when all is submitted."""
        if not self._chunk:
            self._chunk, size = [], 0
            for job in itertools.islice(self._jobs, min(CHUNK, self._limit)):
                self._chunk.append(job)
                size += len(json.dumps(job))
                if size > CHUNK_BYTES:
                    break
            if self._chunk:
                self._tag = f"submit={self._chunk[0]['tags']['submit']}"
        return self._chunk

    def _may_submit(self) -> bool:
        return bool(self._chunk) and len(self._live) + len(self._chunk) <= self._limit and not self._held()

    def _held(self) -> bool:
        return time.monotonic() < self._hold_until

    def _submit(self) -> list[dict[str, Any]]:
        """Submit the chunk; the results of those of it that had ended already."""
        try:
            statuses = self._sender.post("v1", "jobs", body={"jobs": self._chunk})["jobs"]
        except ApiError as error:
            if error.status not in {None, 429, 503}:
                raise
            self._hold_until = time.monotonic() + HOLD_S
            return []
        self._live.update(dict.fromkeys(job["job_id"] for job in self._chunk))
        self._chunk = []
        return [self._result(status) for status in statuses if status["state"] in TERMINAL]

    def _take(self, results: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for result in results:
            if result["job_id"] not in self._live:
                continue  # of another run with this tag, or here already
            del self._live[result["job_id"]]
            self._out.append(result)
            yield without_trajectory(result)

    def _asked_for(self) -> list[dict[str, Any]]:
        statuses = [self._api.get("v1", "jobs", job_id) for job_id in itertools.islice(self._live, ASKED_AT_ONCE)]
        for status in statuses:  # the next round asks for others
            self._live.pop(status["job_id"])
            self._live[status["job_id"]] = None
        return [self._result(status) for status in statuses if status["state"] in TERMINAL]

    def _result(self, status: dict[str, Any]) -> dict[str, Any]:
        try:
            result: dict[str, Any] = self._api.get("v1", "jobs", status["job_id"], "result")
        except ApiUnavailable:
            raise
        except ApiError as error:
            if error.status != 410:
                raise
            # It ended long ago and its result is gone: the status is what is left. Another --run repeats it.
            return {**status, "finish_reason": "expired", "turns": []}
        return result
