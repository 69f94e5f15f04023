"""An eval that failed is repeated alone, from what rollout committed: that is no new attempt, and it has an end."""

from __future__ import annotations

import pytest
import redis
from redis_fixtures import claim, snapshot, submit, to_eval

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

AWAY = JobError(kind="eval", stage="eval", message="the reward server is away", retryable=True)
OUT_OF_STEP = JobError(kind="sandbox", stage="eval", message="the sandbox could not be taken over", retryable=True)


@pytest.fixture(autouse=True)
def nodes(either_client: redis.Redis) -> NodeRegistry:
    """The nodes, of which n1 lives."""
    registry = NodeRegistry(either_client, Settings())
    registry.beat({"node": "n1", "boot": "b1"})
    return registry


def eval_after(store: JobStore, init: Claim) -> Claim:
    """The eval that follows this init; it needs no sandbox."""
    rollout = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=1))
    return claim(store, store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=1))


def bound_eval(store: JobStore, init: Claim) -> Claim:
    """An eval that needs the sandbox of its rollout."""
    where = {"worked_s": 1.0, "node": "n1", "sandboxes": ["box"]}
    rollout = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout.n1.b1", **where))
    store.append_turn(rollout, Turn(index=0))
    return claim(store, store.commit(rollout, {"answer": "x"}, next_stage="eval", queue="eval.n1.b1", **where))


def repeated(store: JobStore, held: Claim, error: JobError = AWAY) -> Claim:
    """The claim that follows a failure."""
    message = store.fail(held, error, worked_s=1)
    assert message is not None
    return claim(store, message)


def what_happened(store: JobStore) -> list[str]:
    return [event.what for event in store.events("a")]


def test_evals_are_repeated_as_often_as_a_job_is_and_the_attempt_stays(store: JobStore) -> None:
    first = to_eval(store, max_attempts=3)
    second = repeated(store, first)
    third = repeated(store, second)
    assert [(one.stage, one.attempt, one.rollout) for one in (second, third)] == [("eval", 1, {"answer": "x"})] * 2
    assert store.fail(third, AWAY, worked_s=1) is None
    result = store.result("a")
    assert (result.state, result.reward, result.attempt, result.error) == ("failed", None, 1, AWAY)
    assert [status.job_id for status in store.dead().statuses] == ["a"]
    counters = store.counters()
    assert (counters["retries:eval:eval"], counters["failed:eval"], counters["dead"]) == (2, 1, 1)
    assert "started_over" not in counters
    assert what_happened(store).count("failed eval eval") == 2


def test_attempts_that_init_used_up_leave_eval_its_own(store: JobStore) -> None:
    init = claim(store, submit(store, max_attempts=2))
    broken = JobError(kind="sandbox", stage="init", message="no sandbox starts", retryable=True)
    again = repeated(store, eval_after(store, repeated(store, init, broken)))
    assert (again.stage, again.attempt) == ("eval", 2)
    assert store.fail(again, AWAY, worked_s=1) is None


def test_the_trajectory_stays_and_the_times_of_all_evals_add_up(store: JobStore) -> None:
    held = bound_eval(store, claim(store, submit(store)))
    again = repeated(store, held)
    assert len(store.turns("a")) == 1
    store.finish(again, state="completed", finish_reason="stop", reward=0.5, worked_s=2)
    result = store.result("a")
    assert (result.reward, result.attempt, len(result.turns)) == (0.5, 1, 1)
    assert (result.timing["rollout"].running, result.timing["eval"].running) == (1.0, 3.0)


def test_a_failure_that_is_written_twice_is_counted_once(store: JobStore, either_client: redis.Redis) -> None:
    held = to_eval(store, max_attempts=2)
    message = store.fail(held, AWAY, worked_s=1)
    before = snapshot(either_client)
    assert store.fail(held, AWAY, worked_s=1) == message
    assert snapshot(either_client) == before
    assert message is not None
    last = claim(store, message)
    for _ in range(2):
        assert store.fail(last, AWAY, worked_s=1) is None
    assert store.counters()["dead"] == 1


def test_one_that_needs_its_sandbox_is_repeated_there(store: JobStore) -> None:
    again = repeated(store, bound_eval(store, claim(store, submit(store))))
    assert (again.stage, again.queue, again.sandboxes, again.attempt) == ("eval", "eval.n1.b1", ("box",), 1)


def test_one_whose_sandbox_went_with_its_node_starts_over_as_a_new_attempt(
    store: JobStore, nodes: NodeRegistry
) -> None:
    held = bound_eval(store, claim(store, submit(store, max_attempts=2)))
    held = repeated(store, held)
    nodes.remove("n1", "b1")
    init = repeated(store, held)
    assert (init.stage, init.attempt, init.init, init.rollout) == ("init", 2, None, None)
    assert store.counters()["started_over"] == 1
    nodes.beat({"node": "n1", "boot": "b1"})
    # The new attempt has its own evals.
    held = repeated(store, bound_eval(store, init))
    assert (held.stage, held.attempt) == ("eval", 2)
    nodes.remove("n1", "b1")
    assert store.fail(held, AWAY, worked_s=1) is None
    assert store.result("a").attempt == 2


def test_one_whose_sandbox_is_out_of_step_starts_over_and_in_the_end_is_charged(store: JobStore) -> None:
    message, attempts = submit(store, max_attempts=2), []
    while message is not None:
        held = bound_eval(store, claim(store, message))
        attempts.append(held.attempt)
        message = store.restart(held, error=OUT_OF_STEP, worked_s=1)
        assert message is None or message.stage == "init"
    assert attempts == [1, 1, 1, 1, 2]
    assert [status.job_id for status in store.dead().statuses] == ["a"]


def test_lost_evals_are_counted_with_those_that_failed(store: JobStore, either_client: redis.Redis) -> None:
    held = repeated(store, to_eval(store, max_attempts=2))
    either_client.zadd("prorl:leases", {f"{held.fence}|a": 1})
    assert store.sweep().ended == ["a"]
    result = store.result("a")
    assert result.error is not None
    assert (result.attempt, result.error.kind, result.reward) == (1, "lost_worker", None)


def test_a_job_that_is_given_a_new_life_has_all_its_evals_again(store: JobStore) -> None:
    assert store.fail(repeated(store, to_eval(store, max_attempts=2)), AWAY, worked_s=1) is None
    held = eval_after(store, claim(store, store.retry("a")))
    assert repeated(store, held).stage == "eval"


def test_a_cancel_ends_an_eval_that_would_be_repeated(store: JobStore) -> None:
    held = to_eval(store)
    store.cancel("a")
    assert store.fail(held, AWAY, worked_s=1) is None
    assert store.result("a").state == "cancelled"
