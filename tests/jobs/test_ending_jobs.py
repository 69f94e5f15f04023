import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis_fixtures import claim, complete, request, snapshot, submit, to_eval, to_rollout

from prorl_celery.errors import FenceLost, JobConflict, JobNotFound, NotFinished, ResultExpired
from prorl_celery.jobs.models import ErrorKind, JobError, Stage
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn


def error(kind: ErrorKind = "sandbox", *, stage: Stage = "rollout", retryable: bool = True) -> JobError:
    return JobError(kind=kind, stage=stage, message=f"{kind} broke", retryable=retryable)


def test_a_finished_job_has_one_result_with_what_its_worker_said(store: JobStore) -> None:
    store.finish(
        to_eval(store),
        state="completed",
        finish_reason="max_turns",
        reward=0.25,
        resolved=False,
        artifacts={"git_patch": "diff"},
        eval={"passed": 1},
        worked_s=1.0,
    )
    result = store.result("a")
    assert (result.state, result.reward, result.resolved) == ("completed", 0.25, False)
    assert (result.finish_reason, result.artifacts, result.eval) == ("max_turns", {"git_patch": "diff"}, {"passed": 1})
    assert [one.job_id for one in store.results().results] == ["a"]
    counts = store.counts()
    assert counts["completed"] == 1
    assert counts["running"] == counts["queued"] == counts["eval"] == 0
    assert store.live_on("n1") == {}
    assert store.heartbeat([("a", 3)]).lost == {"a"}


def test_a_reward_survives_to_the_last_bit(store: JobStore) -> None:
    store.finish(to_eval(store), state="completed", finish_reason="stop", reward=0.1 + 0.2, worked_s=0)
    assert store.result("a").reward == 0.1 + 0.2
    assert store.status("a").reward == 0.1 + 0.2


def test_only_terminal_states_end_a_job(store: JobStore) -> None:
    with pytest.raises(ValueError, match="not a terminal state"):
        store.finish(to_eval(store), state="running", finish_reason="stop", worked_s=0)


def test_a_running_job_has_no_result(store: JobStore) -> None:
    submit(store)
    with pytest.raises(NotFinished, match="a is queued"):
        store.result("a")


def test_a_retryable_failure_goes_back_to_init_until_the_attempts_are_used(store: JobStore) -> None:
    message = submit(store, max_attempts=2)
    again = store.fail(claim(store, message), error(stage="init"), worked_s=1)
    assert again is not None
    assert (again.stage, again.queue, again.fence) == ("init", "init", 1)
    second = claim(store, again)
    assert second.attempt == 2
    assert store.fail(second, error(stage="init"), worked_s=1) is None
    result = store.result("a")
    assert (result.state, result.reward, result.finish_reason, result.attempt) == ("failed", None, "error", 2)
    assert result.error == error(stage="init")
    assert result.timing["init"].running == 2.0


def test_a_failed_rollout_starts_over_without_what_the_first_try_left(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "user", "content": "first"}]))
    message = store.fail(rollout, error(), worked_s=1)
    assert message is not None
    assert store.turns("a") == []
    assert store.status("a").turns == 0
    init = claim(store, message)
    assert init.init is None
    message = store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0)
    second = claim(store, message)
    store.append_turn(second, Turn(index=0, messages=[{"role": "user", "content": "second"}]))
    store.finish(second, state="timed_out", finish_reason="timeout", worked_s=0)
    assert [m["content"] for m in store.result("a").messages] == ["second"]


def test_a_failed_eval_is_repeated_alone(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "user", "content": "kept"}]))
    evaluation = claim(store, store.commit(rollout, {"n": 1}, next_stage="eval", queue="eval", worked_s=0))
    message = store.fail(evaluation, error("eval", stage="eval"), worked_s=1)
    assert message is not None
    assert (message.stage, message.queue) == ("eval", "eval")
    again = claim(store, message)
    assert (again.attempt, again.rollout) == (1, {"n": 1})
    assert len(store.turns("a")) == 1


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [("handler", "failed", "error"), ("timeout", "timed_out", "timeout"), ("cancelled", "cancelled", "cancelled")],
)
def test_a_failure_of_the_jobs_own_ends_it(store: JobStore, kind: ErrorKind, state: str, reason: str) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "user", "content": "partial"}]))
    assert store.fail(rollout, error(kind, retryable=False), worked_s=1) is None
    result = store.result("a")
    assert (result.state, result.finish_reason, result.reward) == (state, reason, None)
    assert [m["content"] for m in result.messages] == ["partial"]
    assert result.error is not None
    assert result.error.kind == kind


def test_a_job_handed_back_is_not_charged(store: JobStore) -> None:
    init = claim(store, submit(store))
    message = store.hand_back(init, worked_s=2.0, waited_s=30.0)
    assert (message.stage, message.queue, message.fence) == ("init", "init", init.fence)
    status = store.status("a")
    assert (status.state, status.attempt) == ("queued", 1)
    assert status.timing["init"].queued >= 30.0
    assert status.timing["init"].running == 2.0
    assert claim(store, message).attempt == 1


def test_a_queued_job_is_cancelled_at_once_and_its_message_claims_nothing(store: JobStore) -> None:
    message = submit(store)
    assert store.cancel("a") == "ended"
    assert store.claim("init", "a", message.fence, node="n", process="p", op="o") is None
    result = store.result("a")
    assert (result.state, result.finish_reason, result.reward) == ("cancelled", "cancelled", None)
    assert result.error is not None
    assert (result.error.kind, result.error.stage) == ("cancelled", "init")
    assert store.cancel("a") == "already_ended"
    assert [one.job_id for one in store.results().results] == ["a"]


def test_a_running_job_is_told_and_ends_as_cancelled_with_its_partial_trajectory(store: JobStore) -> None:
    rollout = to_rollout(store)
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "user", "content": "partial"}]))
    assert store.cancel("a") == "requested"
    assert store.cancel("a") == "requested"
    assert store.status("a").cancel_requested
    assert store.heartbeat([("a", rollout.fence)]).cancelled == {"a"}
    assert store.fail(rollout, error("cancelled", retryable=False), worked_s=1) is None
    result = store.result("a")
    assert result.state == "cancelled"
    assert [m["content"] for m in result.messages] == ["partial"]
    assert not store.status("a").cancel_requested


@pytest.mark.parametrize("step", ["commit", "finish", "fail", "hand_back"])
def test_a_cancel_that_came_first_wins_over_the_workers_word(
    store: JobStore, either_client: redis.Redis, step: str
) -> None:
    rollout = to_rollout(store)
    store.cancel("a")
    if step == "commit":
        with pytest.raises(FenceLost, match="cancelled"):
            store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=0)
    elif step == "hand_back":
        with pytest.raises(FenceLost, match="cancelled"):
            store.hand_back(rollout, waited_s=0)
    elif step == "finish":
        store.finish(rollout, state="completed", finish_reason="stop", reward=1.0, worked_s=0)
    else:
        assert store.fail(rollout, error(), worked_s=0) is None
    result = store.result("a")
    assert (result.state, result.reward) == ("cancelled", None)
    assert either_client.exists("prorl:cancels", "prorl:leases") == 0


def test_of_a_cancel_and_a_commit_at_once_exactly_one_wins(redis_store: JobStore) -> None:
    wins = {"cancel": 0, "finish": 0}
    with ThreadPoolExecutor(2) as pool:
        for number in range(60):
            last = to_eval(redis_store, f"j{number}")
            end = pool.submit(redis_store.finish, last, state="completed", finish_reason="stop", reward=1.0, worked_s=0)
            cancel = pool.submit(redis_store.cancel, f"j{number}")
            end.result(timeout=10)
            outcome = cancel.result(timeout=10)
            state = redis_store.status(f"j{number}").state
            assert (outcome, state) in {("requested", "cancelled"), ("already_ended", "completed")}
            wins["cancel" if state == "cancelled" else "finish"] += 1
    assert len(redis_store.results(limit=1000).results) == 60
    assert sum(wins.values()) == 60


def test_of_a_cancel_and_a_claim_at_once_exactly_one_wins(redis_store: JobStore) -> None:
    with ThreadPoolExecutor(2) as pool:
        for number in range(60):
            job = f"j{number}"
            submit(redis_store, job)
            got = pool.submit(redis_store.claim, "init", job, 0, node="n1", process="p", op="o")
            outcome = pool.submit(redis_store.cancel, job).result(timeout=10)
            claimed = got.result(timeout=10) is not None
            assert claimed == (outcome == "requested")
            assert redis_store.status(job).state == ("running" if claimed else "cancelled")


def test_a_cancel_is_told_on_its_channel_and_an_end_on_another(
    redis_store: JobStore, redis_client: redis.Redis
) -> None:
    with redis_client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe("prorl:cancel", "prorl:done")
        heard.get_message(timeout=5), heard.get_message(timeout=5)
        to_rollout(redis_store, "a")
        redis_store.cancel("a")
        complete(redis_store, "b")
        messages = [heard.get_message(timeout=5), heard.get_message(timeout=5)]
    assert [(m["channel"], m["data"]) for m in messages if m] == [(b"prorl:cancel", b"a"), (b"prorl:done", b"b")]


def test_results_expire_then_ids_and_nothing_is_left(
    make_store: Callable[..., JobStore], either_client: redis.Redis
) -> None:
    def until(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline
            store.sweep()

    store = make_store(result_ttl_seconds=1.0, id_ttl_seconds=4.0)
    submit(store, "warm")
    store.cancel("warm")
    until(lambda: not either_client.exists("prorl:job:warm"))
    constant = set(snapshot(either_client))

    for number in range(5):
        complete(store, f"j{number}", tags={"a": "b"})
    made = store.create([request("batched")], batch_id="b")[0].message
    assert made is not None
    assert store.cancel("batched") == "ended"
    assert store.result("j0").reward == 1.0
    until(lambda: store.counts()["completed"] == 0)
    with pytest.raises(ResultExpired):
        store.result("j0")
    assert store.status("j0").state == "completed"
    assert store.cancel("j0") == "already_ended"
    assert not store.create([request("j0", tags={"a": "b"})])[0].fresh
    with pytest.raises(JobConflict):
        store.create([request("j0", priority=1)])
    assert store.results(after="0-1").truncated
    assert store.results().results == []

    until(lambda: not any(either_client.exists(f"prorl:job:j{number}") for number in range(5)))
    with pytest.raises(JobNotFound):
        store.status("j0")
    until(lambda: not either_client.exists("prorl:job:batched"))
    assert snapshot(either_client).keys() <= constant
    assert store.create([request("j0")])[0].fresh


def test_an_id_that_redis_forgot_before_a_purge_can_be_used_anew(
    redis_store: JobStore, redis_client: redis.Redis
) -> None:
    complete(redis_store, "a")
    redis_client.delete("prorl:job:a", "prorl:data:a")
    assert redis_store.create([request("a")])[0].fresh
    assert redis_store.counts()["completed"] == 0
    assert [status.state for status in redis_store.list().statuses] == ["queued"]
