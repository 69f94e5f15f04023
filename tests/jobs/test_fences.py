from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis_fixtures import claim, complete, request, snapshot, submit, to_eval, to_rollout

from prorl_celery.errors import FenceLost, JobNotFound, TooLarge
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn

BROKEN = JobError(kind="sandbox", stage="init", message="broken", retryable=True)

WRITES: dict[str, Any] = {
    "append_turn": lambda store, claim: store.append_turn(claim, Turn(index=0)),
    "commit": lambda store, claim: store.commit(claim, {}, next_stage="eval", queue="eval", worked_s=1),
    "finish": lambda store, claim: store.finish(claim, state="completed", finish_reason="stop", worked_s=1),
    "fail": lambda store, claim: store.fail(claim, BROKEN, worked_s=1),
    "hand_back": lambda store, claim: store.hand_back(claim, waited_s=1),
}


def test_a_second_claim_of_the_same_message_is_refused(store: JobStore) -> None:
    message = submit(store)
    assert claim(store, message, op="one").fence == 1
    assert store.claim("init", "a", 0, node="n2", process="p2", op="two") is None


def test_the_same_message_delivered_to_many_at_once_is_claimed_once(redis_store: JobStore) -> None:
    submit(redis_store)

    def deliver(number: int) -> Claim | None:
        return redis_store.claim("init", "a", 0, node="n1", process="p", op=str(number))

    with ThreadPoolExecutor(16) as pool:
        assert sum(got is not None for got in pool.map(deliver, range(64))) == 1


def test_the_same_delivery_again_gives_the_same_claim(store: JobStore) -> None:
    message = submit(store)
    assert claim(store, message) == claim(store, message)


def test_messages_of_the_past_the_future_and_nowhere_are_refused(store: JobStore) -> None:
    rollout = to_rollout(store)
    for stage, job, fence in (("init", "a", 0), ("rollout", "a", 1), ("eval", "a", 2), ("init", "b", 0)):
        assert store.claim(stage, job, fence, node="n", process="p", op="new") is None
    assert rollout.fence == 2


@pytest.mark.parametrize("write", WRITES)
def test_a_stale_claim_writes_nothing_anywhere(store: JobStore, either_client: redis.Redis, write: str) -> None:
    stale = to_rollout(store)
    message = store.hand_back(stale, waited_s=0)
    current = claim(store, message, op="later")
    assert current.fence == stale.fence + 1
    before = snapshot(either_client)
    if write != "hand_back":  # which is a replay of what this claim did last
        with pytest.raises(FenceLost, match="claim 2 of a may not") as caught:
            WRITES[write](store, stale)
        assert caught.value.job_id == "a"
    assert store.heartbeat([("a", stale.fence)]).lost == {"a"}
    assert snapshot(either_client) == before


@pytest.mark.parametrize("write", WRITES)
def test_no_claim_writes_to_a_job_that_has_ended(store: JobStore, either_client: redis.Redis, write: str) -> None:
    rollout = to_rollout(store)
    store.finish(rollout, state="failed", finish_reason="error", worked_s=0)
    before = snapshot(either_client)
    if write != "finish":
        with pytest.raises(FenceLost):
            WRITES[write](store, rollout)
    assert snapshot(either_client) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_claim_of_a_job_never_seen_writes_nothing(store: JobStore, either_client: redis.Redis, write: str) -> None:
    rollout = to_rollout(store)
    either_client.flushall()
    with pytest.raises(FenceLost):
        WRITES[write](store, rollout)
    assert either_client.dbsize() == 0


def test_an_output_over_the_limit_is_refused(make_store: Any) -> None:
    store = make_store(max_blob_bytes=2048)
    init = claim(store, submit(store))
    with pytest.raises(TooLarge, match="what init returned is"):
        store.commit(init, {"x": "y" * 4000}, next_stage="rollout", queue="rollout", worked_s=0)


def test_outputs_pass_from_stage_to_stage(store: JobStore) -> None:
    last = to_eval(store)
    assert last.init == {"ready": True}
    assert last.rollout == {"answer": "x"}


def test_waiting_and_work_are_charged_to_their_stages(store: JobStore) -> None:
    init = claim(store, submit(store))
    store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=2.0, waited_s=3.5)
    timing = store.status("a").timing
    assert timing["init"].running == 2.0
    assert 3.5 <= timing["init"].queued < 60.0
    assert timing["rollout"].running == 0.0


def test_a_job_on_a_nodes_queue_is_live_there(store: JobStore) -> None:
    init = claim(store, submit(store))
    assert set(store.live_on("n1")) == {"a"}
    message = store.commit(
        init, {}, next_stage="rollout", queue="rollout.n1.b1", worked_s=0, node="n1", sandboxes=["box"]
    )
    assert set(store.live_on("n1")) == {"a"}
    assert store.queue_depths(["rollout.n1.b1", "rollout"]) == {"rollout.n1.b1": 1, "rollout": 0}
    rollout = claim(store, message)
    assert (rollout.sandboxes, rollout.boot) == (("box",), "b1")
    store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=0)
    assert store.live_on("n1") == {}


def test_an_unknown_job_is_not_found(store: JobStore) -> None:
    for ask in (store.status, store.result, store.cancel):
        with pytest.raises(JobNotFound):
            ask("nobody")


def test_pages_come_newest_first_and_meet_without_gaps(store: JobStore) -> None:
    for number in range(7):
        submit(store, f"j{number}", tags={"odd": str(number % 2)})
    complete(store, "done")
    seen, cursor = [], None
    while True:
        page = store.list(limit=3, cursor=cursor)
        seen += [status.job_id for status in page.statuses]
        cursor = page.next
        if cursor is None:
            break
    assert seen == ["done", *(f"j{number}" for number in reversed(range(7)))]
    assert [status.job_id for status in store.list(state="completed").statuses] == ["done"]
    assert len(store.list(state="queued").statuses) == 7
    assert len(store.list(tag=("odd", "1")).statuses) == 3
    with pytest.raises(ValueError, match="is not a cursor"):
        store.list(cursor="x")


def test_a_batchs_jobs_can_be_listed(store: JobStore) -> None:
    store.create([request("x"), request("y")], batch_id="step1")
    submit(store, "z")
    assert [status.job_id for status in store.list(batch_id="step1").statuses] == ["y", "x"]
