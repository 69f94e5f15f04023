"""Which groups of a batch count is judged by the shaped rewards."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.batch_models import BatchRequest
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.batches import BatchRegistry
from tasks.process import StageProcess
from tasks.stages import run_stage


class Rambler(Handler):
    """Always right; the second sample takes more words for it."""

    data_source = "rambler"
    uses_sandbox = False

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        work: Any = ctx._work  # type: ignore[attr-defined]
        count = 50 if ctx.job.job_id.endswith(":1") else 5
        work.process.store.append_turn(work.claim, Turn(index=0, new_segment=True, completion_tokens=count))
        return {}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": 1.0}


@pytest.mark.parametrize(("max_tokens", "counts"), [(40, True), (4000, False)])
def test_a_group_that_differs_by_its_shaping_alone_counts(
    process: StageProcess, redis_client: redis.Redis, max_tokens: int, counts: bool
) -> None:
    process.handlers = HandlerRegistry({"rambler": Rambler()})
    started: list[Message] = []
    batches = BatchRegistry(redis_client, process.settings, publisher_of(started.extend))
    batches.create(
        BatchRequest.model_validate(
            {
                "batch_id": "b",
                "target_groups": 1,
                "samples_per_group": 2,
                "prompts": [{"prompt_id": "p", "instance": {"data_source": "rambler"}}],
                "defaults": {"reward_shaping": {"overlong": {"max_tokens": max_tokens, "buffer_tokens": 10}}},
            }
        )
    )
    outbox: Any = process.publisher
    outbox.messages += started
    assert len(started) == 2
    while outbox.messages:
        message = outbox.messages.pop()
        run_stage(process, message.stage, message.job_id, message.fence)
    groups = batches.groups("b", 0, 10)
    assert [(group.min_reward, group.max_reward) for group in groups] == ([(0.0, 1.0)] if counts else [])
    assert batches.status("b").state == ("complete" if counts else "exhausted")
