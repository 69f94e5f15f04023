"""What one batch leaves and the next takes over: finished samples, running ones, those that wait; and what goes wrong
between the two.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis
from batch_world import BatchWorld, a_batch, prompts

from prorl_celery.jobs.turns import Turn, ids_array, logprobs_array
from prorl_celery.settings import Settings


@pytest.fixture
def world(redis_client: redis.Redis, redis_settings: Settings) -> BatchWorld:
    return BatchWorld(redis_client, redis_settings)


def leave(world: BatchWorld, *, groups: int = 3, **fields: Any) -> None:
    """Batch `b` reaches its target by its first prompt and keeps the groups of the others."""
    wanted = {"target_groups": 1, "prompts": prompts(groups + 1), "on_target": "carry_over"}
    world.batches.create(a_batch(**wanted | fields))


def complete(world: BatchWorld) -> None:
    world.end("b:0:0", 0.0)
    world.end("b:0:1", 1.0)
    assert world.batches.status("b").state == "complete"


def test_adopted_groups_that_meet_the_target_alone_leave_none_of_the_others_behind(world: BatchWorld) -> None:
    leave(world, groups=5)
    held = {job: world.take(job) for job in ("b:1:0", "b:1:1", "b:2:0")}
    complete(world)
    for job, reward in (("b:1:0", 0.0), ("b:1:1", 1.0)):
        world.finish(held[job], reward)
    world.batches.create(a_batch("c", target_groups=1, prompts=[], adopt="b"))
    status = world.batches.status("c")
    assert (status.state, status.groups.informative, status.groups.inflight) == ("complete", 1, 0)
    world.batches.tend()
    world.finish(held["b:2:0"], 1.0)
    assert world.live_jobs() == []
    assert world.batches.status("c").jobs.live == 0


def test_what_waits_is_not_started_until_it_is_adopted(world: BatchWorld) -> None:
    leave(world, groups=1)
    complete(world)
    assert world.take("b:1:0") is None
    assert world.store.status("b:1:0").state == "queued"
    assert world.messages == [message for message in world.messages if message.job_id == "b:1:1"]
    world.batches.create(a_batch("c", target_groups=1, prompts=[], adopt="b"))
    world.end("b:1:0", 1.0)
    world.end("b:1:1", 0.0)
    assert world.won("c") == ["b:1"]


def test_a_rollout_that_is_lost_between_two_batches_waits_for_the_next(world: BatchWorld) -> None:
    leave(world, groups=1)
    claim = world.take("b:1:0")
    assert claim is not None
    rollout = world.store.commit(claim, {}, next_stage="rollout", queue="rollout", worked_s=0.1)
    complete(world)
    world.messages.append(rollout)
    held = world.take("b:1:0")  # what is past init goes on, since it holds sandboxes
    assert held is not None
    again = world.store.hand_back(held, waited_s=0.0, sandboxes_lost=True)
    world.messages.append(again)
    assert (again.stage, world.take("b:1:0")) == ("init", None)
    world.batches.create(a_batch("c", target_groups=1, prompts=[], adopt="b"))
    world.end("b:1:0", 1.0)
    world.end("b:1:1", 0.0)
    assert world.won("c") == ["b:1"]


def test_a_sample_that_fails_between_two_batches_is_drawn_anew_for_the_next(world: BatchWorld) -> None:
    leave(world, groups=1)
    running = world.take("b:1:0")
    complete(world)
    assert running is not None
    world.finish(running, None)
    assert world.take("b:1:0:r1") is None
    world.batches.create(a_batch("c", target_groups=1, prompts=[], adopt="b"))
    world.end("b:1:0:r1", 1.0)
    world.end("b:1:1", 0.0)
    assert world.won("c") == ["b:1"]


@pytest.mark.parametrize(("version", "carried"), [(4, 1), (5, 0)])
def test_a_group_is_as_old_as_its_oldest_token_finished_or_not(world: BatchWorld, version: int, carried: int) -> None:
    leave(world, groups=1)
    claim = world.take("b:1:0")
    assert claim is not None
    world.messages.append(world.store.commit(claim, {}, next_stage="rollout", queue="rollout", worked_s=0.1))
    held = world.take("b:1:0")
    assert held is not None
    turn = Turn(index=0, sampled_ids=ids_array([7]), logprobs=logprobs_array([-0.1]), versions=ids_array([3]))
    world.store.append_turn(held, turn)
    complete(world)
    world.batches.create(a_batch("c", target_groups=1, prompts=[], adopt="b", max_staleness=1), version=version)
    groups = world.batches.status("c").groups
    assert groups.carried == carried
    assert world.batches.status("b").groups.revoked == 1 - carried


def test_what_nobody_adopts_in_time_is_cancelled(world: BatchWorld) -> None:
    leave(world, groups=2)
    complete(world)
    assert world.take("b:1:0") is None
    world.batches.tend()
    assert len(world.live_jobs()) == 4
    world.client.zadd(world.keys("batches_left"), {"b": 1})
    world.batches.tend()
    world.batches.tend()
    assert world.live_jobs() == []
    assert world.batches.status("b").groups.revoked == 2
    assert world.client.exists(world.keys("revoked"), world.keys("batches_left")) == 0


def test_a_dropped_group_stays_dropped_when_it_is_adopted(world: BatchWorld) -> None:
    leave(world, groups=1, samples_per_group=3, min_samples=1, failed_samples="drop_group")
    running = world.take("b:1:0")
    for sample, reward in enumerate((0.0, 1.0, 1.0)):
        world.end(f"b:0:{sample}", reward)
    assert running is not None
    world.finish(running, None)
    fields = {"samples_per_group": 3, "min_samples": 1, "failed_samples": "drop_group"}
    world.batches.create(a_batch("c", target_groups=1, prompts=[], adopt="b", **fields))
    status = world.batches.status("c")
    assert (status.state, status.groups.carried, status.groups.failed) == ("exhausted", 1, 1)


def test_what_is_adopted_keeps_its_prompt_while_it_may_run(world: BatchWorld, redis_settings: Settings) -> None:
    leave(world, groups=1)
    complete(world)
    until = world.client.pttl(world.keys("dapo_specs", "b"))
    world.batches.create(a_batch("c", target_groups=1, prompts=[], adopt="b"))
    assert world.client.pttl(world.keys("dapo_specs", "b")) > until
    assert world.client.pttl(world.keys("dapo_specs", "b")) > redis_settings.id_ttl_seconds * 1000 - 60_000
