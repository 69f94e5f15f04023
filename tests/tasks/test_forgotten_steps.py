"""A Redis that has come back without its last moment: what was done in that is in the sandboxes, and in no record.

A standby that takes over, or a file that was not flushed, loses so much. Then the rollout starts over, uncharged: it
must not do again what it has done already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from prorl_celery.errors import FenceLost
from prorl_celery.handlers.base import Handler
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobStatus, Stage
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import Backend
from prorl_celery.testing import ScriptedBackend
from tasks.process import StageProcess

Drive = Callable[..., JobStatus]
COMMANDS = [f"echo {n} >> /tmp/steps" for n in range(3)]


class Stepping(Handler):
    """Its agent leaves a line with each turn."""

    data_source = "stepping"
    default_tools = ("bash",)

    def __init__(self) -> None:
        self.attempts: list[tuple[int, bool]] = []

    def rollout(self, ctx: Any) -> Any:
        self.attempts.append((ctx.attempt, ctx.going_on))
        ctx.run_agent([{"role": "user", "content": "\n".join(f"$ {command}" for command in COMMANDS)}])
        return {"steps": ctx.sandbox.files.read("/tmp/steps").decode().split()}

    def eval(self, ctx: Any) -> Any:
        return {"reward": 1.0, **ctx.rollout}


@pytest.fixture
def backend(process: StageProcess) -> Iterator[ScriptedBackend]:
    with ScriptedBackend(policy="obey") as backend:
        tokenizer = str(backend.tokenizer_dir)
        process.backends.put(Backend(url=backend.url, model="scripted", tokenizer=tokenizer, gives_ids=True))
        yield backend


def forget(client: redis.Redis, saved: dict[bytes, Any]) -> None:
    """Have Redis as it was."""
    client.flushall()
    for key, value in saved.items():
        client.restore(key, 0, value)


def kept(client: redis.Redis) -> dict[bytes, Any]:
    return {key: client.dump(key) for key in client.keys("*")}


def done_once(process: StageProcess, status: JobStatus) -> None:
    assert (status.state, status.attempt) == ("completed", 1), status.error
    assert process.store.result("a").eval["steps"] == ["0", "1", "2"]
    assert [turn.index for turn in process.store.turns("a")] == [0, 1, 2, 3]


@pytest.mark.parametrize("step", ["append_turn", "append_observation"])
def test_a_rollout_whose_turn_log_has_lost_its_end_starts_over_uncharged(
    drive: Drive,
    process: StageProcess,
    keeper: KeeperClient,
    backend: ScriptedBackend,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    append = getattr(process.store, step)
    saved: list[dict[bytes, Any]] = []

    def append_and_be_forgotten(claim: Any, what: Any, *more: Any) -> None:
        before = kept(redis_client)
        append(claim, what, *more)
        if what.index == 1 and not saved:
            saved.append(before)
            forget(redis_client, before)

    monkeypatch.setattr(process.store, step, append_and_be_forgotten)
    handler = Stepping()
    done_once(process, drive(handler))
    assert handler.attempts == [(1, False), (1, False)]


def test_a_rollout_whose_claim_was_forgotten_does_not_work_where_that_one_has(
    drive: Drive,
    process: StageProcess,
    keeper: KeeperClient,
    backend: ScriptedBackend,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = process.store.claim
    saved: list[dict[bytes, Any]] = []
    published: list[int] = []

    def save_and_claim(stage: Stage, job_id: str, fence: int, **more: Any) -> Claim | None:
        if stage == "rollout" and not saved:
            saved.append(kept(redis_client))
            published.append(fence)
        return claim(stage, job_id, fence, **more)

    class Forgotten(Stepping):
        def rollout(self, ctx: Any) -> Any:
            if self.attempts:
                return super().rollout(ctx)
            self.attempts.append((ctx.attempt, ctx.going_on))
            ctx.sandbox.shell.run(COMMANDS[0], timeout=10.0)
            forget(redis_client, saved[0])
            process.publisher.publish(Message("rollout", "rollout.n1.boot", "a", published[0], 5))
            raise FenceLost("another has it")

    monkeypatch.setattr(process.store, "claim", save_and_claim)
    handler = Forgotten()
    done_once(process, drive(handler))
    assert handler.attempts == [(1, False)] * 3, "the second found that it is not the first"
    assert keeper.list() == []
