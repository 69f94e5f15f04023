"""A rollout outlives its claim: another goes on with its turn log, its sandboxes, its backend and its deadline."""

from __future__ import annotations

import pytest
import redis
from redis_fixtures import claim, snapshot, submit

from prorl_celery.errors import FenceLost
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import FREE_RESTARTS, JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

OUT_OF_STEP = JobError(kind="sandbox", stage="rollout", message="the shell is out of step", retryable=True)


@pytest.fixture(autouse=True)
def nodes(either_client: redis.Redis) -> NodeRegistry:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b1"})
    return nodes


def queued(store: JobStore, job_id: str = "a", *, sandboxes: bool = True, **fields: object) -> Message:
    """A job that waits for rollout, in a sandbox of n1 or in none."""
    init = claim(store, submit(store, job_id, **fields))
    if not sandboxes:
        return store.commit(init, {"ready": True}, next_stage="rollout", queue="rollout", worked_s=0)
    return store.commit(
        init, {"ready": True}, next_stage="rollout", queue="rollout.n1.b1", worked_s=0, node="n1", sandboxes=["box"]
    )


def rollout(store: JobStore, job_id: str = "a", *, sandboxes: bool = True, **fields: object) -> Claim:
    return claim(store, queued(store, job_id, sandboxes=sandboxes, **fields))


def test_a_rollout_that_is_handed_back_goes_on_with_all_that_it_had(store: JobStore) -> None:
    first = rollout(store)
    assert (first.going_on, first.spent_s) == (False, 0.0)
    store.append_turn(first, Turn(index=0))
    store.append_turn(first, Turn(index=1))
    message = store.hand_back(first, worked_s=12.5, waited_s=3.0)
    assert message == Message("rollout", "rollout.n1.b1", "a", first.fence, 5)
    status = store.status("a")
    assert (status.state, status.stage, status.attempt, status.turns) == ("queued", "rollout", 1, 2)
    assert set(store.live_on("n1")) == {"a"}
    second = claim(store, message, process="p2")
    assert (second.going_on, second.spent_s, second.attempt, second.losses) == (True, 12.5, 1, 0)
    assert (second.sandboxes, second.init, second.boot) == (("box",), {"ready": True}, "b1")
    assert len(store.turns("a")) == 2
    store.append_turn(second, Turn(index=2))
    third = claim(store, store.hand_back(second, worked_s=2.5, waited_s=0), process="p3")
    assert third.spent_s == 15.0
    assert [turn.index for turn in store.turns("a")] == [0, 1, 2]
    assert store.status("a").timing["rollout"].running == 15.0


def test_a_rollout_that_has_no_sandboxes_goes_on_anywhere(store: JobStore) -> None:
    message = store.hand_back(rollout(store, sandboxes=False), waited_s=0)
    assert (message.stage, message.queue) == ("rollout", "rollout")
    got = claim(store, message, node="n2")
    assert (got.going_on, got.boot) == (True, None)
    assert set(store.live_on("n2")) == {"a"}


def test_what_committed_or_started_over_goes_on_no_longer(store: JobStore) -> None:
    second = claim(store, store.hand_back(rollout(store), worked_s=5, waited_s=0))
    message = store.commit(second, {}, next_stage="eval", queue="eval", worked_s=1)
    evaluation = claim(store, message)
    assert (evaluation.going_on, evaluation.spent_s) == (False, 0.0)
    third = claim(store, store.hand_back(rollout(store, "b"), worked_s=5, waited_s=0))
    init = claim(store, store.fail(third, OUT_OF_STEP, worked_s=1))  # type: ignore[arg-type]
    assert (init.attempt, init.going_on) == (2, False)
    again = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0))
    assert (again.going_on, again.spent_s) == (False, 0.0)
    assert store.turns("b") == []


@pytest.mark.parametrize("known", [True, False])
def test_a_rollout_whose_sandboxes_are_gone_starts_over_uncharged(
    store: JobStore, nodes: NodeRegistry, known: bool
) -> None:
    first = rollout(store)
    store.append_turn(first, Turn(index=0))
    if not known:
        nodes.remove("n1", "b1")
    message = store.hand_back(first, waited_s=0, sandboxes_lost=known)
    assert (message.stage, message.queue) == ("init", "init")
    got = claim(store, message)
    assert (got.attempt, got.going_on, got.sandboxes, got.init) == (1, False, (), None)
    assert store.turns("a") == []
    assert store.counters()["started_over"] == 1


def test_sandboxes_that_a_rollout_made_for_itself_can_be_lost_too(store: JobStore) -> None:
    message = store.hand_back(rollout(store, sandboxes=False), waited_s=0, sandboxes_lost=True)
    assert message.stage == "init"


def test_the_old_claim_of_a_rollout_that_goes_on_writes_nothing(store: JobStore, either_client: redis.Redis) -> None:
    first = rollout(store)
    store.append_turn(first, Turn(index=0))
    claim(store, store.hand_back(first, waited_s=0), op="later")
    before = snapshot(either_client)
    with pytest.raises(FenceLost):
        store.append_turn(first, Turn(index=1))
    with pytest.raises(FenceLost):
        store.commit(first, {}, next_stage="eval", queue="eval", worked_s=0)
    assert snapshot(either_client) == before


def test_a_rollout_that_waits_to_go_on_is_cancelled_at_once_with_its_trajectory(store: JobStore) -> None:
    first = rollout(store)
    store.append_turn(first, Turn(index=0, messages=[{"role": "user", "content": "kept"}]))
    message = store.hand_back(first, waited_s=0)
    assert store.cancel("a") == "ended"
    assert [m["content"] for m in store.result("a").messages] == ["kept"]
    assert store.claim("rollout", "a", message.fence, node="n1", process="p", op="o") is None
    assert store.live_on("n1") == {}


def test_a_rollout_that_waits_to_go_on_and_loses_its_node_starts_over(
    store: JobStore, either_client: redis.Redis, nodes: NodeRegistry
) -> None:
    store.hand_back(rollout(store), waited_s=0)
    either_client.hset("prorl:job:a", "published", 1)
    nodes.remove("n1", "b1")
    (message,) = store.sweep().messages
    assert message.stage == "init"
    assert claim(store, message).attempt == 1


def test_a_rollout_without_sandboxes_leaves_a_nodes_queue_and_goes_on(
    store: JobStore, either_client: redis.Redis, nodes: NodeRegistry
) -> None:
    init = claim(store, submit(store))
    first = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout.n1.b1", worked_s=0, node="n1"))
    store.append_turn(first, Turn(index=0))
    assert store.hand_back(first, waited_s=0).queue == "rollout.n1.b1"
    either_client.hset("prorl:job:a", "published", 1)
    nodes.remove("n1", "b1")
    (message,) = store.sweep().messages
    assert (message.stage, message.queue) == ("rollout", "rollout")
    assert claim(store, message, node="n2").going_on
    assert len(store.turns("a")) == 1
    assert set(store.live_on("n2")) == {"a"}
    assert store.live_on("n1") == {}


def test_a_restart_is_not_charged_where_it_lies_in_the_handlers_nature(store: JobStore) -> None:
    got = rollout(store, max_attempts=1)
    store.append_turn(got, Turn(index=0))
    for _ in range(FREE_RESTARTS + 2):
        message = store.restart(got, worked_s=1)
        assert message is not None
        assert (message.stage, message.queue) == ("init", "init")
        init = claim(store, message)
        assert (init.attempt, init.going_on) == (1, False)
        assert store.turns("a") == []
        got = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0))


def test_a_restart_for_an_error_is_charged_after_three_and_ends_the_job_when_attempts_are_used(
    store: JobStore,
) -> None:
    message: Message | None = queued(store, max_attempts=2)
    for attempt in (1, 1, 1, 2):
        assert message is not None
        message = store.restart(claim(store, message), error=OUT_OF_STEP, worked_s=1)
        assert message is not None
        init = claim(store, message)
        assert init.attempt == attempt
        message = store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0)
    assert store.restart(claim(store, message), error=OUT_OF_STEP, worked_s=1) is None
    result = store.result("a")
    assert (result.state, result.reward, result.error) == ("failed", None, OUT_OF_STEP)
    assert [status.job_id for status in store.dead().statuses] == ["a"]
    assert store.counters()["retries:sandbox:rollout"] == 1


def test_a_cancel_that_came_first_wins_over_a_restart(store: JobStore) -> None:
    got = rollout(store)
    store.cancel("a")
    with pytest.raises(FenceLost, match="was cancelled before it could restart"):
        store.restart(got, worked_s=1)
    assert store.status("a").state == "cancelled"


def test_a_rollout_that_goes_on_is_given_the_backend_it_had_even_if_others_have_fewer_jobs(
    store: JobStore, either_client: redis.Redis
) -> None:
    backends = BackendRegistry(either_client, Settings())
    for name in "abc":
        backends.put(Backend(url=f"http://{name}", model="m", gives_ids=True))
    first = rollout(store)
    had = backends.acquire("a", first.fence, model="m", mode="tokens")
    assert had is not None
    message = store.hand_back(first, waited_s=0)
    assert {backend.url: backend.assigned for backend in backends.list()}[had.url] == 0
    for number in range(6):
        other = rollout(store, f"other{number}")
        backends.acquire(other.job_id, other.fence, model="m", mode="tokens", exclude=[])
    second = claim(store, message)
    assert backends.acquire("a", second.fence, model="m", mode="tokens") == had
    assert {backend.url: backend.assigned for backend in backends.list()}[had.url] == 3
    # One that will not do is not insisted on.
    moved = backends.acquire("a", second.fence, model="m", mode="tokens", exclude=[had.url])
    assert moved is not None
    assert moved.url != had.url
    assert backends.recount() == 0


def test_a_backend_that_drains_is_not_given_to_a_rollout_that_comes_back(
    store: JobStore, either_client: redis.Redis
) -> None:
    backends = BackendRegistry(either_client, Settings())
    backends.put(Backend(url="http://a", model="m"))
    first, stays = rollout(store), rollout(store, "stays")
    for one in (first, stays):
        backends.acquire(one.job_id, one.fence, model="m", mode=None)
    message = store.hand_back(first, waited_s=0)
    backends.remove("http://a", "drain")
    backends.put(Backend(url="http://b", model="m"))
    got = backends.acquire("a", claim(store, message).fence, model="m", mode=None)
    assert got is not None
    assert got.url == "http://b"


@pytest.mark.parametrize("known_dead", [True, False])
def test_what_a_lost_claim_waited_is_charged_to_no_stage(
    store: JobStore, either_client: redis.Redis, known_dead: bool
) -> None:
    process = "n1 b1 rollout-0 0123abcd"
    held = claim(store, queued(store), process=process)
    either_client.hset("prorl:job:a", "since", int(either_client.hget("prorl:job:a", "since") or 0) - 100_000)
    store.heartbeat([("a", held.fence)], {"a": 70.0})
    store.heartbeat([("a", held.fence)])
    if known_dead:
        store.lapse(process)
    else:
        either_client.zincrby("prorl:leases", -Settings().lease_seconds * 1000 - 1, f"{held.fence}|a")
    (message,) = store.sweep().messages
    second = claim(store, message, process=process)
    # Of one that is only silent nobody knows how long it worked after its last word.
    assert second.spent_s == pytest.approx(30.0 if known_dead else 30.0 - Settings().lease_seconds, abs=5.0)
    timing = store.status("a").timing["rollout"]
    assert (timing.running, timing.queued) == (second.spent_s, pytest.approx(70.0, abs=5.0))
    store.lapse(process)
    assert claim(store, store.sweep().messages[0]).spent_s == pytest.approx(second.spent_s, abs=5.0)
    assert store.status("a").timing["rollout"].queued == pytest.approx(70.0, abs=5.0), "the next has waited for nothing"
