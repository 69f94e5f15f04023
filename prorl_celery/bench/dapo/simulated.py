"""Our way: the real scripts on a real Redis, driven by a virtual clock.

Messages are taken in the order in which they were published, claimed, and finished when their sample's time is over, as
workers do; what the batch starts, closes and revokes is decided by the scripts alone.
"""

from __future__ import annotations

import heapq
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis

from prorl_celery.bench.dapo.outcome import Outcome
from prorl_celery.bench.dapo.workload import Prompts
from prorl_celery.jobs.batch_models import BatchRequest, MorePrompts
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobRequest
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.settings import Settings

PAGE = 100
"""Prompts that the trainer sends at a time, when the batch asks for more."""
NOTICE_SECONDS = 1.0
"""From a revocation until its job has stopped."""


class Fleet:
    """Slots on a virtual clock, working off the store's messages."""

    def __init__(self, client: redis.Redis, settings: Settings, prompts: Prompts) -> None:
        self.now = 0.0
        self.worked_s = 0.0
        """Seconds that slots were in use, of jobs that have ended."""
        self._queue: deque[Message] = deque()
        self.store = JobStore(client, settings, publish=self._queue.extend)
        self.batches = BatchRegistry(client, settings, publisher_of(self._queue.extend))
        self._client: Any = client
        self._prompts = prompts
        self._ends: list[tuple[float, str]] = []
        self._running: dict[str, tuple[Claim, float]] = {}
        self._stops: dict[str, float] = {}
        self._names: dict[tuple[str, int], tuple[int, int]] = {}

    @property
    def busy(self) -> int:
        return len(self._running)

    def name(self, batch_id: str, numbers: Sequence[int], first: int, again: int = 0) -> None:
        """Say which prompts a batch's prompts are, and how often they were rolled out before."""
        for at, number in enumerate(numbers, first):
            self._names[(batch_id, at)] = (number, again)

    def submit(self, name: str, jobs: Sequence[JobRequest]) -> None:
        """Jobs of no batch, named `<name>:<prompt>:<sample>`."""
        for job in jobs:
            number = int(job.job_id.rsplit(":", 2)[1])
            self._names[(name, number)] = (number, 0)
        self._queue.extend(one.message for one in self.store.create(jobs) if one.message is not None)

    def fill(self) -> None:
        """Claim what waits, for every free slot."""
        while self._queue and self.busy < self._prompts.workload.slots:
            message = self._queue.popleft()
            claim = self.store.claim(
                message.stage, message.job_id, message.fence, node="n", process="n p", op=secrets.token_hex(8)
            )
            if claim is not None:
                self._running[claim.job_id] = (claim, self.now)
                heapq.heappush(self._ends, (self.now + self._sample(claim.job_id).seconds, claim.job_id))

    def step(self) -> None:
        """Go on to the end of the next job. Raises IndexError when nothing runs."""
        while True:
            when, job_id = heapq.heappop(self._ends)
            if job_id in self._running:
                break
        self.now = when
        claim, began = self._running.pop(job_id)
        worked = when - began
        self.worked_s += worked
        if self._stops.pop(job_id, None) == when:
            self.store.finish(claim, state="cancelled", finish_reason="cancelled", worked_s=worked)
        else:
            reward = self._sample(job_id).reward
            self.store.finish(claim, state="completed", finish_reason="stop", reward=reward, worked_s=worked)
        self.fill()

    def hear_revoked(self) -> None:
        """What is revoked and runs stops within `NOTICE_SECONDS`, as workers do that are told by their heartbeat."""
        for member in self._client.zrange(self.store.keys("revoked"), 0, -1):
            job_id = member.decode()
            if job_id in self._running and job_id not in self._stops:
                self._stops[job_id] = self.now + NOTICE_SECONDS
                heapq.heappush(self._ends, (self._stops[job_id], job_id))

    def stop_revoked(self) -> None:
        """Go on until nothing runs that is revoked."""
        self.hear_revoked()
        while self._stops:
            self.step()

    def number(self, group_id: str) -> int:
        """Which prompt a group is of."""
        batch_id, _, prompt = group_id.rpartition(":")
        return self._names[(batch_id, int(prompt))][0]

    def _sample(self, job_id: str) -> Any:
        batch_id, prompt, sample = job_id.rsplit(":", 2)
        return self._prompts.group(*self._names[(batch_id, int(prompt))])[int(sample)]


def ours(
    client: redis.Redis, settings: Settings, prompts: Prompts, steps: int, *, dataset: int | None = None, **more: Any
) -> Outcome:
    """Fill `steps` batches in a row, on a Redis that is empty. Each adopts what the one before has left.

    With `dataset` the trainer has so many prompts, and sends all of them to each batch, beginning where the last one
    came to; `more` are further fields of the batches.
    """
    load, outcome, fleet = prompts.workload, Outcome(), Fleet(client, settings, prompts)
    drawn, before = 0, None
    for number in range(steps):
        batch_id, carries = f"s{number}", number < steps - 1
        request = {
            "batch_id": batch_id,
            "target_groups": load.target,
            "samples_per_group": load.samples,
            "more_prompts": True,
            "max_inflight_jobs": load.slots,
            "on_target": "carry_over" if carries else "cancel",
            "adopt": before,
        } | more
        fleet.batches.create(BatchRequest.model_validate(request))
        sent = 0
        while (state := fleet.batches.state(batch_id)) != "complete":
            if state == "waiting_for_prompts" or sent == 0:
                page = [drawn + at if dataset is None else (drawn + at) % dataset for at in range(dataset or PAGE)]
                fleet.name(batch_id, page, sent, 0 if dataset is None else number)
                fleet.batches.add(batch_id, MorePrompts.model_validate({"prompts": [sent_prompt(n) for n in page]}))
                drawn, sent = drawn + len(page), sent + len(page)
                fleet.fill()
            else:
                fleet.step()
                fleet.hear_revoked()
            outcome.busy.append((fleet.now, fleet.busy))
        outcome.seconds = fleet.now
        if not carries:
            fleet.stop_revoked()
        fleet.batches.tend()
        status = fleet.batches.status(batch_id)
        won = fleet.batches.groups(batch_id, 0, load.target + 1)
        outcome.groups.append(len(won))
        outcome.won += [fleet.number(group.group_id) for group in won]
        outcome.uniform += status.groups.uninformative
        outcome.last_waste_s = status.waste.revoked.seconds + status.waste.failed.seconds
        outcome.wasted_s += outcome.last_waste_s
        outcome.uniform_s += status.waste.uniform.seconds
        # Prompts that were sent and never begun are the trainer's again.
        drawn -= status.groups.pending
        before = batch_id if carries else None
    outcome.worked_s = fleet.worked_s
    return outcome


def sent_prompt(number: int) -> dict[str, Any]:
    """A prompt as a trainer sends it."""
    return {"prompt_id": f"p{number}", "instance": {"data_source": "math", "problem": str(number), "answer": "1"}}
