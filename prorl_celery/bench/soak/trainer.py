"""The client of a soak: keeps so many jobs under way, and outlives whatever happens to the service."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from prorl_celery.client import Client, Result
from prorl_celery.errors import ApiError

BATCH = 24
PATIENCE_S = 120.0
"""How long one call of the client goes on trying while the API or Redis is away."""
POLL_S = 5.0


class Trainer:
    """Submits jobs and counts their ends, on a thread of its own. `told` is how often each job's end was told."""

    def __init__(self, url: str, jobs: Sequence[dict[str, Any]], window: int, deadline: float) -> None:
        self._url = url
        self._jobs = list(jobs)
        self._window = window
        self._deadline = deadline
        self._lock = threading.Lock()
        self.told: Counter[str] = Counter()
        self.states: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """Failed jobs by the kind of their error."""
        self.reasons: list[str] = []
        """What these say of themselves."""
        self.wrong: list[str] = []
        """Completed jobs whose reward is not the 1 that they are worth."""
        self.submitted = 0
        self.errors: list[str] = []
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    @property
    def ended(self) -> int:
        """Jobs whose end was told."""
        with self._lock:
            return len(self.told)

    def _run(self) -> None:
        try:
            with Client(self._url, patience=PATIENCE_S) as client:
                self._train(client)
        except ApiError as error:
            self.errors.append(str(error))
        finally:
            self.over.set()

    def _train(self, client: Client) -> None:
        after: str | None = None
        while self.ended < len(self._jobs) and time.monotonic() < self._deadline:
            self._submit(client)
            page = client.results_page(after, wait=POLL_S, limit=200)
            after = page.next or after
            self._count(page.results)
        # What is told once more, or of a job that is not ours, comes behind the last.
        self._count(client.results_page(after, limit=1000).results)

    def _submit(self, client: Client) -> None:
        while self.submitted < len(self._jobs) and self.submitted - self.ended <= self._window - BATCH:
            batch = self._jobs[self.submitted : self.submitted + BATCH]
            client.submit(batch)
            self.submitted += len(batch)

    def _count(self, results: Sequence[Result]) -> None:
        with self._lock:
            for result in results:
                self.told[result.job_id] += 1
                if self.told[result.job_id] > 1:
                    continue
                self.states[result.state] += 1
                if result.error is not None and result.state != "completed":
                    self.failures[result.error.kind] += 1
                    self.reasons.append(f"{result.job_id} {result.state}: {result.error.stage}: {result.error.message}")
                if result.state == "completed" and result.reward != 1.0:
                    self.wrong.append(result.job_id)
