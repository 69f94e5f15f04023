"""Batches that faults are tried on: asked for, watched, and looked at as a whole when they are over."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from e2e_service import eventually
from fault_service import WITHIN_S, FaultService

from prorl_celery.jobs.batch_models import LIVE, BatchStatus, GroupView
from prorl_celery.jobs.models import TERMINAL

FILLED_S = 120.0
"""For a batch that takes a few seconds on a quiet machine."""


def prompt(name: str, *rewards: float, seconds: float = 0.0, **more: Any) -> dict[str, Any]:
    """A prompt whose samples score so, see `fault_handlers.ScoreHandler`."""
    instance = {"data_source": "score", "rewards": list(rewards), "seconds": seconds, **more}
    return {"prompt_id": name, "instance": instance}


def mixed_prompts(count: int, samples: int, *, one_in: int, seconds: float = 0.05, **more: Any) -> list[dict[str, Any]]:
    """Prompts of which one in so many has one sample that is right; of the others all are wrong, or all right."""
    same = itertools.cycle((0.0, 1.0))
    return [
        prompt(f"mixed-{n}", *(float(k == 0) for k in range(samples)), seconds=seconds, **more)
        if n % one_in == one_in - 1
        else prompt(f"same-{n}", *[next(same)] * samples, seconds=seconds, **more)
        for n in range(count)
    ]


class Filling:
    """A batch of a service that is hurt."""

    def __init__(
        self, service: FaultService, batch_id: str, target: int, samples: int, prompts: Sequence[Any], **fields: Any
    ) -> None:
        self.service = service
        self.id = batch_id
        self.target = target
        self.samples = samples
        counts = {"target_groups": target, "samples_per_group": samples}
        service.client.batches.create({"batch_id": batch_id, **counts, "prompts": list(prompts), **fields})

    @cached_property
    def _key(self) -> str:
        return f"prorl:batch:{self.id}"

    def status(self) -> BatchStatus:
        return self.service.client.batches.status(self.id)

    def jobs(self) -> list[str]:
        """All that it ever started."""
        return [job.decode() for job in self.service.redis.zrange(self._key, 0, -1)]

    def in_flight(self) -> int:
        """Its jobs that have not ended, counted in Redis by themselves."""
        pipe = self.service.redis.pipeline(transaction=False)
        for job in self.jobs():
            pipe.hget(f"prorl:job:{job}", "state")
        return sum(state.decode() not in TERMINAL for state in pipe.execute())

    def await_won(self, count: int) -> None:
        assert eventually(lambda: self.status().groups.informative >= count, FILLED_S), self.told()

    def await_end(self) -> BatchStatus:
        """Wait until it and all its jobs have ended; they are asked for by `assert_sound` from then on."""
        assert eventually(lambda: self.status().state not in LIVE, FILLED_S), self.told()
        assert eventually(lambda: self.in_flight() == 0, WITHIN_S), self.told()
        self.service.submitted += [job for job in self.jobs() if job not in self.service.submitted]
        return self.status()

    def groups(self) -> list[GroupView]:
        """The groups that count, read page by page to the end."""
        found: list[GroupView] = []
        while True:
            page = self.service.client.batches.groups(self.id, len(found), wait=10.0)
            found += page.groups
            if page.done:
                return found

    def assert_full(self, state: str = "complete") -> list[GroupView]:
        """It has exactly as many groups as were asked for, each once, each with all its samples, each sample once."""
        status = self.await_end()
        assert status.state == state, self.told()
        groups = self.groups()
        assert len(groups) == status.groups.informative == self.target, self.told()
        assert len({group.group_id for group in groups}) == self.target
        for group in groups:
            ids = [result["job_id"] for result in group.results]
            assert len(set(ids)) == len(ids) == group.scored == self.samples, (group.group_id, ids)
            rewards = [result["reward"] for result in group.results]
            assert None not in rewards
            assert max(rewards) - min(rewards) > 0, group.group_id
        self._assert_counted_once(status)
        return groups

    def _assert_counted_once(self, status: BatchStatus) -> None:
        """What the counters say is what the jobs' own records say."""
        jobs = {job: self.service.record(job) for job in self.jobs()}
        completed = Counter(record["group"] for record in jobs.values() if record["state"] == "completed")
        closed: Counter[str] = Counter()
        for group in {record["group"] for record in jobs.values()}:
            batch, _, number = group.rpartition(":")
            record = {
                k.decode(): v.decode() for k, v in self.service.redis.hgetall(f"prorl:group:{number}:{batch}").items()
            }
            closed[record["state"]] += 1
            if record["state"] in ("won", "uniform"):
                assert int(record["scored"]) == completed[group] == self.samples, (group, record)
            else:
                assert int(record["scored"]) <= completed[group], (group, record)
            assert not self.service.redis.exists(f"prorl:members:{number}:{batch}"), group
        counts = status.groups
        assert closed == {
            state: count
            for state, count in (
                ("won", counts.informative), ("uniform", counts.uninformative), ("failed", counts.failed),
                ("revoked", counts.revoked),
            )
            if count
        }, status  # fmt: skip
        assert counts.inflight == status.jobs.live == 0, status
        assert status.jobs.started == len(jobs), status

    def states(self) -> Counter[str]:
        """How many of its jobs ended how."""
        return Counter(self.service.record(job)["state"] for job in self.jobs())

    def told(self) -> str:
        """What a failed test shows of it."""
        live = [job for job in self.jobs() if self.service.record(job)["state"] not in TERMINAL]
        return "\n".join([self.status().model_dump_json(), self.service.told(live[:5])])
