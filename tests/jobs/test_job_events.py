"""What happened to a job can be read from the start, and heard as it happens."""

from __future__ import annotations

import pytest
import redis
from redis_fixtures import claim, submit, to_rollout

from prorl_celery.errors import JobNotFound
from prorl_celery.jobs.history import event_of
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Observation, Turn

BROKEN = JobError(kind="backend", stage="rollout", message="broken", retryable=True)
MOST_EVENTS = 2000


def whats(store: JobStore, job_id: str = "a", after: int = 0) -> list[str]:
    return [event.what for event in store.events(job_id, after)]


def test_a_jobs_events_tell_its_whole_way(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, Turn(index=0, closed=False))
    store.append_observation(rollout, Observation(index=0, call=0, closes=True))
    rollout = claim(store, store.hand_back(rollout, waited_s=0))
    store.append_turn(rollout, Turn(index=1))
    evaluation = claim(store, store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=0))
    store.cancel("a")
    store.finish(evaluation, state="completed", finish_reason="stop", worked_s=0)
    assert whats(store) == [
        "running init", "queued rollout", "running rollout", "turn 0", "call 0 0", "handed_back rollout",
        "queued rollout", "running rollout", "turn 1", "queued eval", "running eval", "cancel_requested",
        "ended cancelled",
    ]  # fmt: skip
    events = store.events("a")
    assert [event.number for event in events] == list(range(1, 14))
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert store.events("a", after=11) == events[11:]
    assert store.events("a", after=13) == []


def test_a_loss_and_a_failed_attempt_are_events(store: JobStore, either_client: redis.Redis) -> None:
    rollout = to_rollout(store)
    store.fail(rollout, BROKEN, worked_s=0)
    assert whats(store)[-2:] == ["failed rollout backend", "queued init"]
    claim(store, submit(store, "b"))
    either_client.zadd("prorl:leases", {"1|b": 1})
    store.sweep()
    assert whats(store, "b")[-3:] == ["lost init", "failed init lost_worker", "queued init"]


def test_a_retried_jobs_events_begin_anew_and_their_numbers_go_on(store: JobStore) -> None:
    store.fail(claim(store, submit(store, max_attempts=1)), BROKEN, worked_s=0)
    last = store.events("a")[-1]
    assert (last.number, last.what) == (2, "ended failed")
    store.retry("a")
    assert [(event.number, event.what) for event in store.events("a")] == [(3, "retried"), (4, "queued init")]
    assert whats(store, after=last.number) == ["retried", "queued init"]


def test_of_very_many_events_the_latest_are_kept_and_numbers_go_on(
    redis_store: JobStore, redis_client: redis.Redis
) -> None:
    rollout = to_rollout(redis_store)
    for index in range(MOST_EVENTS + 10):
        redis_store.append_turn(rollout, Turn(index=index))
    events = redis_store.events("a")
    assert len(events) == MOST_EVENTS == redis_client.llen("prorl:events:a")
    assert events[-1].what == f"turn {MOST_EVENTS + 9}"
    assert [event.number for event in events] == list(range(events[-1].number - MOST_EVENTS + 1, events[-1].number + 1))


def test_what_is_heard_is_what_is_kept(redis_store: JobStore, redis_client: redis.Redis) -> None:
    with redis_client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe("prorl:event:a")
        assert heard.get_message(timeout=10) is None  # the subscription itself
        to_rollout(redis_store)
        events = []
        while len(events) < 3:
            message = heard.get_message(ignore_subscribe_messages=True, timeout=10)
            assert message is not None
            events.append(event_of(message["data"]))
    assert events == redis_store.events("a")


def test_a_job_never_seen_has_no_events_and_a_new_one_none_yet(store: JobStore) -> None:
    with pytest.raises(JobNotFound):
        store.events("nobody")
    submit(store)
    assert store.events("a") == []


def test_events_go_with_the_result(store: JobStore, either_client: redis.Redis) -> None:
    submit(store)
    store.cancel("a")
    assert either_client.pttl("prorl:events:a") > 0
    either_client.zadd("prorl:expiry", {"a": 1})
    store.sweep()
    assert store.events("a") == []
    assert either_client.exists("prorl:events:a") == 0
