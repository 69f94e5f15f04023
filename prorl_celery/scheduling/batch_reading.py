"""Reading batches: how far one has come, its groups in order of completion. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import redis

from prorl_celery.errors import BatchNotFound
from prorl_celery.jobs.batch_models import (
    LIVE,
    BatchRequest,
    BatchState,
    BatchStatus,
    GroupCounts,
    GroupView,
    JobCounts,
    Spent,
    Waste,
)
from prorl_celery.settings import Settings
from prorl_celery.store.clients import reaching_redis
from prorl_celery.store.keys import Keys
from prorl_celery.store.scripts import Scripts

Record = dict[str, str]


class BatchReader:
    """Reads batches. Raises `StoreUnavailable`."""

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        born: Callable[[list[Any]], None] | None = None,
    ) -> None:
        """`born` takes what scripts tell of jobs that they have made (`jobs.replies.publisher_of`)."""
        self.keys = Keys(settings.key_prefix)
        self._client: Any = client
        self._settings = settings
        self._run = Scripts(client, settings, born=born).run

    def request(self, batch_id: str) -> BatchRequest:
        """What was asked for, without its prompts. Raises `BatchNotFound`."""
        with reaching_redis():
            asked = self._client.hget(self.keys("dapo", batch_id), "asked")
        if asked is None:
            raise BatchNotFound(f"no batch {batch_id}", batch_id=batch_id)
        return BatchRequest.model_validate_json(asked)

    def status(self, batch_id: str) -> BatchStatus:
        """Where a batch stands. Raises `BatchNotFound`."""
        with reaching_redis():
            pipe = self._client.pipeline(transaction=True)
            pipe.hgetall(self.keys("dapo", batch_id))
            pipe.zcard(self.keys("dapo_waiting", batch_id))
            pipe.time()
            raw, waiting, (seconds, micros) = pipe.execute()
        if not raw:
            raise BatchNotFound(f"no batch {batch_id}", batch_id=batch_id)
        now = seconds + micros / 1e6
        return _status(batch_id, {name.decode(): value.decode() for name, value in raw.items()}, waiting, now)

    def state(self, batch_id: str) -> BatchState:
        """Its state alone, in one small command. Raises `BatchNotFound`."""
        with reaching_redis():
            state = self._client.hget(self.keys("dapo", batch_id), "state")
        if state is None:
            raise BatchNotFound(f"no batch {batch_id}", batch_id=batch_id)
        return cast(BatchState, state.decode())

    def live(self) -> dict[str, int]:
        """How many batches are being filled, and how many wait for prompts."""
        counted: dict[str, int] = {state: 0 for state in sorted(LIVE)}
        with reaching_redis():
            pipe = self._client.pipeline(transaction=False)
            for batch in self._client.zrange(self.keys("batches_live"), 0, -1):
                pipe.hget(self.keys("dapo", batch.decode()), "state")
            states = pipe.execute()
        for state in states:
            if state and (name := state.decode()) in counted:
                counted[name] += 1
        return counted

    def ids(self, limit: int = 100) -> list[str]:
        """The batches that are known, newest first."""
        with reaching_redis():
            return [batch.decode() for batch in self._client.zrevrange(self.keys("batches"), 0, limit - 1)]

    def groups(self, batch_id: str, after: int, limit: int) -> list[GroupView]:
        """The groups that count, in order of completion, behind the first `after`; their results are left out.

        Raises `BatchNotFound`.
        """
        with reaching_redis():
            pipe = self._client.pipeline(transaction=True)
            pipe.hget(self.keys("dapo", batch_id), "samples")
            pipe.lrange(self.keys("dapo_won", batch_id), after, after + limit - 1)
            samples, ids = pipe.execute()
            if samples is None:
                raise BatchNotFound(f"no batch {batch_id}", batch_id=batch_id)
            pipe = self._client.pipeline(transaction=False)
            parts = [group.decode().rpartition(":") for group in ids]
            for batch, _, prompt in parts:
                pipe.hmget(self.keys("group", prompt, batch), "scored", "min", "max", "oldest")
                pipe.hget(self.keys("dapo_names", batch), prompt)
            found = pipe.execute()
        return [
            GroupView(
                group_id=f"{batch}:{prompt}",
                prompt_id=name.decode() if name else prompt,
                batch_id=batch,
                samples=int(samples),
                scored=int(scored or 0),
                min_reward=float(low or 0),
                max_reward=float(high or 0),
                oldest_policy_version=int(oldest) if oldest else None,
            )
            for (batch, _, prompt), (scored, low, high, oldest), name in zip(
                parts, found[::2], found[1::2], strict=True
            )
        ]

    def jobs_of(self, group: GroupView) -> list[str]:
        """The ids of the jobs that count in a group, by sample; a sample that was revoked has none."""
        prompt = group.group_id.rpartition(":")[2]
        with reaching_redis():
            record = self._client.hgetall(self.keys("group", prompt, group.batch_id))
        samples = [(int(name[4:]), job.decode()) for name, job in record.items() if name.startswith(b"job:")]
        return [job for _, job in sorted(samples)]

    def fingerprints(self, batch_id: str, prompt_ids: Sequence[str]) -> list[str | None]:
        """For each prompt_id the fingerprint of the instance that it was accepted with, if it was."""
        found: list[bytes | None] = []
        for first in range(0, len(prompt_ids), 1000):
            with reaching_redis():
                found += self._client.hmget(self.keys("dapo_prompts", batch_id), prompt_ids[first : first + 1000])
        return [value.decode().partition(" ")[2] if value else None for value in found]


def _status(batch_id: str, record: Record, waiting: int, now: float) -> BatchStatus:
    def number(name: str) -> int:
        return int(float(record.get(name, 0)))

    def spent(why: str) -> Spent:
        return Spent(seconds=number(f"{why}_ms") / 1000, tokens=number(f"{why}_tokens"))

    won, uniform, open_ = number("won"), number("uniform"), number("open")
    state: Any = record["state"]
    live = state in {"filling", "waiting_for_prompts"}
    left = None
    if live and won:
        left = (number("target") - won) * (now - number("created") / 1000) / won
    return BatchStatus(
        batch_id=batch_id,
        state=state,
        target_groups=number("target"),
        samples_per_group=number("samples"),
        prompts=number("prompts"),
        more_prompts=record.get("more") == "1",
        groups=GroupCounts(
            pending=waiting,
            inflight=open_,
            informative=won,
            uninformative=uniform,
            uniform_0=number("uniform_0"),
            uniform_1=number("uniform_1"),
            failed=number("failed"),
            revoked=number("revoked"),
            carried=number("carried"),
            withdrawn=number("withdrawn"),
        ),
        jobs=JobCounts(
            live=number("live"),
            started=number("drawn") * number("samples") + number("redrawn"),
            redrawn=number("redrawn"),
        ),
        waste=Waste(revoked=spent("revoked"), uniform=spent("uniform"), failed=spent("failed")),
        informative_rate=won / (won + uniform) if won + uniform else None,
        seconds_to_target=left,
        adopted_by=record.get("adopted_by"),
        created_at=_rfc3339(record["created"]),
        ended_at=_rfc3339(record["ended"]) if "ended" in record else None,
    )


def _rfc3339(milliseconds: str) -> str:
    seconds, rest = divmod(int(milliseconds), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"
