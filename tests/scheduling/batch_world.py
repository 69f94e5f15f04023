"""Batches with workers that do as a test says: jobs end in init, with the rewards that it names."""

from __future__ import annotations

import itertools
from typing import Any

import redis

from prorl_celery.jobs.batch_models import BatchRequest
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.keys import Keys


def prompts(count: int, first: int = 0) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [
        {"prompt_id": f"p{n}", "instance": {"data_source": "math", "problem": str(n), "answer": "1"}} for n in numbers
    ]


def a_batch(batch_id: str = "b", **fields: Any) -> BatchRequest:
    """Two groups of two, of four prompts."""
    body = {"batch_id": batch_id, "target_groups": 2, "samples_per_group": 2, "prompts": prompts(4)}
    return BatchRequest.model_validate(body | fields)


class BatchWorld:
    """Batches, their jobs, and the messages that are on their way."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self.client: Any = client
        self.keys = Keys(settings.key_prefix)
        self.messages: list[Message] = []
        self.store = JobStore(client, settings, publish=self.messages.extend)
        self.batches = BatchRegistry(client, settings, publisher_of(self.messages.extend))
        self._numbers = itertools.count(1)

    def take(self, job_id: str) -> Claim | None:
        """Claim a job by its latest message; None where the claim is refused."""
        found = [message for message in self.messages if message.job_id == job_id]
        assert found, f"no message of {job_id} in {[message.job_id for message in self.messages]}"
        message = found[-1]
        for one in found:
            self.messages.remove(one)
        op = f"{next(self._numbers):08x}"
        return self.store.claim(
            message.stage, job_id, message.fence, node="n1", process=f"n1 b1 {message.stage}-0 0", op=op
        )

    def end(self, job_id: str, reward: float | None) -> None:
        """A worker takes the job and ends it: with this reward, or, for None, as failed."""
        self.finish(self.take(job_id), reward)

    def finish(self, claim: Claim | None, reward: float | None) -> None:
        """End a job that was taken."""
        assert claim is not None
        state: Any = "failed" if reward is None else "completed"
        self.store.finish(claim, state=state, finish_reason="stop", reward=reward, worked_s=2.0)

    def won(self, batch_id: str) -> list[str]:
        return [group.group_id for group in self.batches.groups(batch_id, 0, 100)]

    def live_jobs(self) -> list[str]:
        return [job.job_id for state in ("queued", "running") for job in self.store.list(state=state).statuses]  # type: ignore[arg-type]
