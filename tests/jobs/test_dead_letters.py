"""What failed after its last attempt is listed with the reason, and can be given another life."""

from __future__ import annotations

import pytest
import redis
from redis_fixtures import claim, complete, request, snapshot, submit, to_eval, to_rollout

from prorl_celery.errors import FenceLost, JobNotFound, NotFailed, NotFinished, ResultExpired
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn

BROKEN = JobError(kind="sandbox", stage="init", message="no sandbox starts", retryable=True)
LATE = JobError(kind="timeout", stage="rollout", message="late", retryable=False)
WRONG = JobError(kind="handler", stage="init", message="KeyError", retryable=False)


def fail(store: JobStore, job_id: str = "a", error: JobError = BROKEN) -> None:
    """A job that fails at its only attempt."""
    assert store.fail(claim(store, submit(store, job_id, max_attempts=1)), error, worked_s=1) is None


def test_a_job_whose_attempts_are_used_is_a_dead_letter_with_its_reason(store: JobStore) -> None:
    fail(store)
    (status,) = store.dead().statuses
    assert (status.job_id, status.state, status.error) == ("a", "failed", BROKEN)
    assert store.counters()["dead"] == 1


def test_what_another_attempt_would_not_have_cured_is_none(store: JobStore) -> None:
    fail(store, "wrong", WRONG)
    store.fail(to_rollout(store, "late", max_attempts=1), LATE, worked_s=1)
    store.finish(to_rollout(store, "said"), state="failed", finish_reason="error", worked_s=1)
    submit(store, "cancelled")
    store.cancel("cancelled")
    complete(store, "done")
    assert store.dead().statuses == []


def test_dead_letters_come_in_pages_the_latest_first(store: JobStore, either_client: redis.Redis) -> None:
    for number in range(7):
        fail(store, f"j{number}")
    for number, when in enumerate((10, 20, 20, 20, 20, 30, 40)):  # many may die in one moment
        either_client.zadd("prorl:dead", {f"j{number}": when})
    seen, cursor = [], None
    while True:
        page = store.dead(limit=2, cursor=cursor)
        seen += [status.job_id for status in page.statuses]
        cursor = page.next
        if cursor is None:
            break
    assert seen == ["j6", "j5", "j4", "j3", "j2", "j1", "j0"]
    for wrong in ("x", "1", "1-x", "-1-2", "1-2-3", "\u0661-1"):
        with pytest.raises(ValueError, match="not a cursor"):
            store.dead(cursor=wrong)


def test_a_retried_job_has_a_new_life_from_init_with_all_its_attempts(store: JobStore) -> None:
    message = submit(store, max_attempts=2)
    assert store.fail(claim(store, message), BROKEN, worked_s=1) is not None
    rollout = claim(
        store,
        store.commit(
            claim(store, Message("init", "init", "a", 1, 5)), {}, next_stage="rollout", queue="rollout", worked_s=1
        ),
    )
    store.append_turn(rollout, Turn(index=0))
    assert store.fail(rollout, BROKEN, worked_s=1) is None
    again = store.retry("a")
    assert (again.stage, again.queue, again.job_id) == ("init", "init", "a")
    status = store.status("a")
    assert (status.state, status.stage, status.attempt, status.turns) == ("queued", "init", 1, 0)
    assert (status.error, status.finished_at, status.node, status.backend) == (None, None, None, None)
    with pytest.raises(NotFinished):
        store.result("a")
    assert store.turns("a") == []
    assert store.dead().statuses == []
    got = claim(store, again)
    assert (got.attempt, got.init, got.request) == (1, None, request("a", max_attempts=2))
    assert store.fail(got, BROKEN, worked_s=1) is not None  # the second attempt of two
    assert store.counts()["failed"] == 0


def test_a_retried_job_has_one_result_in_the_stream_that_of_its_last_life(store: JobStore) -> None:
    fail(store)
    before = store.results()
    assert [result.state for result in before.results] == ["failed"]
    init = claim(store, store.retry("a"))
    assert store.results().results == []
    rollout = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=1))
    store.finish(rollout, state="completed", finish_reason="stop", reward=1.0, worked_s=1)
    assert [(result.state, result.error) for result in store.results().results] == [("completed", None)]
    assert [result.state for result in store.results(after=before.next).results] == ["completed"]
    with pytest.raises(NotFailed):
        store.retry("a")


def test_a_job_that_timed_out_can_be_retried(store: JobStore) -> None:
    store.fail(to_rollout(store), LATE, worked_s=1)
    assert claim(store, store.retry("a")).attempt == 1


@pytest.mark.parametrize("state", ["queued", "running", "completed", "cancelled"])
def test_what_has_not_failed_cannot_be_retried(store: JobStore, either_client: redis.Redis, state: str) -> None:
    if state == "completed":
        complete(store)
    elif state == "running":
        to_eval(store)
    else:
        submit(store)
        if state == "cancelled":
            store.cancel("a")
    before = snapshot(either_client)
    with pytest.raises(NotFailed, match="a has not failed"):
        store.retry("a")
    assert snapshot(either_client) == before


def test_what_is_not_known_or_no_longer_kept_cannot_be_retried(store: JobStore, either_client: redis.Redis) -> None:
    with pytest.raises(JobNotFound):
        store.retry("nobody")
    fail(store)
    either_client.zadd("prorl:expiry", {"a": 1})
    store.sweep()
    with pytest.raises(ResultExpired):
        store.retry("a")
    assert store.dead().statuses == []
    assert either_client.exists("prorl:dead") == 0


def test_no_message_and_no_claim_of_the_first_life_does_anything_in_the_second(store: JobStore) -> None:
    message = submit(store, max_attempts=1)
    old = claim(store, message)
    store.fail(old, BROKEN, worked_s=1)
    again = store.retry("a")
    for fence in range(again.fence):
        assert store.claim("init", "a", fence, node="n", process="p", op="new") is None
    with pytest.raises(FenceLost):
        store.hand_back(old, waited_s=0)
    with pytest.raises(FenceLost):
        store.fail(old, BROKEN, worked_s=1)
    assert claim(store, again).fence > old.fence


def test_a_retried_job_does_not_expire_while_it_lives(redis_store: JobStore, redis_client: redis.Redis) -> None:
    message = redis_store.create([request("a", max_attempts=1)], batch_id="b")[0].message
    assert message is not None
    redis_store.fail(claim(redis_store, message), BROKEN, worked_s=1)
    keys = ("job:a", "data:a", "events:a", "batch:b")
    assert all(redis_client.pttl(f"prorl:{key}") > 0 for key in keys)
    redis_store.retry("a")
    assert [redis_client.pttl(f"prorl:{key}") for key in keys] == [-1] * 4
    assert redis_client.zscore("prorl:expiry", "a") is None
    assert [status.job_id for status in redis_store.list(batch_id="b").statuses] == ["a"]


def test_retries_and_failures_are_counted_by_kind(store: JobStore) -> None:
    store.fail(claim(store, submit(store, "again", max_attempts=2)), BROKEN, worked_s=1)
    fail(store, "dead")
    fail(store, "wrong", WRONG)
    store.fail(to_rollout(store, "late"), LATE, worked_s=1)
    evaluation = to_eval(store, "scored")
    store.fail(evaluation, JobError(kind="eval", stage="eval", message="m", retryable=True), worked_s=1)
    assert store.counters() == {
        "retries:sandbox:init": 1, "retries:eval:eval": 1,
        "failed:sandbox": 1, "failed:handler": 1, "failed:timeout": 1,
        "dead": 1, "stalled": 0,
    }  # fmt: skip
