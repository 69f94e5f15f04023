"""Rules of batches that no random history meets: names that are taken, turns without a version, trainers that leave."""

from __future__ import annotations

import pytest
import redis
from batch_world import BatchWorld, a_batch, prompts

from prorl_celery.errors import JobConflict, NotFailed
from prorl_celery.jobs.batch_models import MorePrompts
from prorl_celery.jobs.models import JobRequest
from prorl_celery.jobs.turns import Turn
from prorl_celery.settings import Settings


@pytest.fixture
def world(redis_client: redis.Redis, redis_settings: Settings) -> BatchWorld:
    return BatchWorld(redis_client, redis_settings)


def a_job(job_id: str) -> JobRequest:
    return JobRequest.model_validate({"job_id": job_id, "instance": {"data_source": "noop"}})


def test_a_job_that_has_a_samples_name_already_is_left_alone(world: BatchWorld) -> None:
    world.store.create([a_job("b:0:0")])
    world.batches.create(a_batch())
    assert world.store.status("b:0:0").batch_id is None
    world.end("b:0:0:x1", 1.0)
    world.end("b:0:1", 0.0)
    assert world.won("b") == ["b:0"]
    (group,) = world.batches.groups("b", 0, 9)
    assert world.batches.jobs_of(group) == ["b:0:0:x1", "b:0:1"]
    with pytest.raises(JobConflict):
        world.store.create([a_job("b:1:0")])


def test_it_runs_ahead_by_three_groups_that_may_be_won_for_each_that_is_missing(world: BatchWorld) -> None:
    """Half of them, while nothing is known: six groups for one. Of a group that differs already one is enough."""
    world.batches.create(a_batch(target_groups=1, prompts=prompts(20)))
    assert world.batches.status("b").groups.inflight == 6
    world.batches.create(a_batch("grpo", target_groups=3, informative=None, prompts=prompts(20)))
    assert world.batches.status("grpo").groups.inflight == 3


def test_ids_with_colons_are_told_apart(world: BatchWorld) -> None:
    for batch in ("a", "a:1", "a:1:0"):
        world.batches.create(a_batch(batch, target_groups=1))
    for batch in ("a", "a:1", "a:1:0"):
        world.end(f"{batch}:1:0", 0.0)
        world.end(f"{batch}:1:1", 1.0)
    assert [world.won(batch) for batch in ("a", "a:1", "a:1:0")] == [["a:1"], ["a:1:1"], ["a:1:0:1"]]


def test_a_sample_without_a_policy_version_ends_as_any(world: BatchWorld) -> None:
    world.batches.create(a_batch())
    claim = world.take("b:0:0")
    assert claim is not None
    world.messages.append(world.store.commit(claim, {}, next_stage="rollout", queue="rollout", worked_s=0.1))
    rollout = world.take("b:0:0")
    assert rollout is not None
    world.store.append_turn(rollout, Turn(index=0))
    world.finish(rollout, 1.0)
    world.end("b:0:1", 0.0)
    (group,) = world.batches.groups("b", 0, 9)
    assert (group.group_id, group.oldest_policy_version) == ("b:0", None)


def test_a_cancelled_sample_is_a_failed_one_and_is_not_drawn_anew(world: BatchWorld) -> None:
    world.batches.create(a_batch(samples_per_group=3, min_samples=2, prompts=prompts(1)))
    world.store.cancel("b:0:1")
    world.end("b:0:0", 0.0)
    world.end("b:0:2", 1.0)
    status = world.batches.status("b")
    assert (world.won("b"), status.jobs.started, status.jobs.redrawn) == (["b:0"], 3, 0)


def test_a_sample_is_not_retried_by_hand_and_the_refusal_says_why(world: BatchWorld) -> None:
    world.batches.create(a_batch(failed_samples="keep_group"))
    world.end("b:0:0", None)
    with pytest.raises(NotFailed, match="it is a sample of a batch"):
        world.store.retry("b:0:0")
    assert world.store.status("b:0:0").state == "failed"


def test_a_batch_whose_prompts_never_came_waits_for_them_and_ends(world: BatchWorld) -> None:
    world.batches.create(a_batch(prompts=[], more_prompts=True, idle_timeout=60.0))
    world.client.hset(world.keys("dapo", "b"), mapping={"state": "filling"})
    world.batches.tend()
    assert world.batches.status("b").state == "waiting_for_prompts"
    world.client.hset(world.keys("dapo", "b"), "waiting_since", 1)
    world.batches.tend()
    assert world.batches.status("b").state == "exhausted"


def test_to_ask_for_a_batch_again_does_not_take_back_that_no_more_prompts_come(world: BatchWorld) -> None:
    asked = a_batch(prompts=prompts(1), more_prompts=True)
    world.batches.create(asked)
    world.batches.add("b", MorePrompts.model_validate({"prompts": prompts(1, 1), "more_prompts": False}))
    assert not world.batches.create(asked)
    for job in ("b:0:0", "b:0:1", "b:1:0", "b:1:1"):
        world.end(job, 0.0)
    assert world.batches.status("b").state == "exhausted"


def test_a_batch_is_made_anew_under_an_id_whose_batch_was_forgotten(world: BatchWorld) -> None:
    world.batches.create(a_batch(prompts=prompts(1)))
    world.end("b:0:0", 0.0)
    world.end("b:0:1", 0.0)
    assert world.batches.status("b").state == "exhausted"
    # Redis has expired the batch; its jobs ended a moment later and are still remembered.
    for name in ("dapo", "dapo_prompts", "dapo_names", "dapo_specs", "dapo_waiting", "dapo_open", "dapo_won"):
        world.client.delete(world.keys(name, "b"))
    assert world.batches.create(a_batch(prompts=prompts(1)))
    world.end("b:0:0:x1", 0.0)
    assert world.client.pttl(world.keys("job", "b:0:1:x1")) == -1
    world.end("b:0:1:x1", 1.0)
    assert world.won("b") == ["b:0"]
    assert world.store.status("b:0:0").state == "completed"


def test_a_memory_is_not_outlived_by_what_it_counts_from(world: BatchWorld) -> None:
    world.batches.create(a_batch(memory="m"))
    clock = world.keys("uniform_clock", "m")
    world.client.pexpire(clock, 60_000)
    world.end("b:0:0", 0.0)
    world.end("b:0:1", 0.0)
    assert world.client.zcard(world.keys("uniform", "m")) == 1
    assert world.client.pttl(clock) >= world.client.pttl(world.keys("uniform", "m")) - 1000


def test_a_prompt_that_was_uniform_lately_is_tried_after_the_others(world: BatchWorld) -> None:
    world.batches.create(a_batch(target_groups=1, memory="m", prompts=prompts(2)))
    world.end("b:0:0", 1.0)
    world.end("b:0:1", 1.0)
    world.end("b:1:0", 0.0)
    world.end("b:1:1", 1.0)
    fields = {"target_groups": 1, "samples_per_group": 2, "max_inflight_jobs": 2, "prompts": prompts(2)}
    world.batches.create(a_batch("c", memory="m", **fields))
    world.batches.create(a_batch("d", **fields))
    assert {message.job_id for message in world.messages} == {"c:1:0", "c:1:1", "d:0:0", "d:0:1"}


def test_a_validation_batch_of_higher_priority_goes_before_training(world: BatchWorld) -> None:
    world.batches.create(a_batch("train"))
    validation = {"informative": None, "defaults": {"priority": 9}, "target_groups": 1, "prompts": prompts(1)}
    world.batches.create(a_batch("val", **validation))
    levels = {level: world.client.zrange(world.keys("queued", level, "init"), 0, -1) for level in ("0", "3")}
    # The broker's level 0 is read before level 3.
    assert [job.decode().split(":")[0] for job in levels["0"]] == ["val", "val"]
    assert {job.decode().split(":")[0] for job in levels["3"]} == {"train"}
    assert {message.priority for message in world.messages if message.job_id.startswith("val")} == {9}
