"""Time passes in these tests by moving the scores that hold it, or by leases of half a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import redis
from redis_fixtures import claim, request, snapshot, submit, to_eval, to_rollout

from prorl_celery.errors import FenceLost
from prorl_celery.jobs.messages import Message, broker_list
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings


def lapse(client: redis.Redis, *jobs: str) -> None:
    """Make the leases of these jobs lapse."""
    for member in client.zrange("prorl:leases", 0, -1):
        if member.decode().split("|")[1] in jobs:
            client.zadd("prorl:leases", {member: 1})


def age(client: redis.Redis, store: JobStore, seconds: float) -> None:
    """Let all that the lost-message rule remembers be older by so much."""
    for key in client.keys("prorl:job:*"):
        published = client.hget(key, "published")
        if published:
            client.hset(key, "published", int(published) - int(seconds * 1000))
    for field, value in client.hgetall("prorl:passed").items():
        if field.endswith((b":at", b":empty")):
            client.hset("prorl:passed", field, int(value) - int(seconds * 1000))


def publish(client: redis.Redis, message: Message) -> None:
    client.lpush(broker_list(message.queue, message.level), message.job_id)


def test_a_job_whose_lease_lapsed_is_tried_again_and_then_ends_as_lost(
    store: JobStore, either_client: redis.Redis
) -> None:
    message = submit(store, max_attempts=2)
    claim(store, message)
    assert store.sweep().messages == []
    lapse(either_client, "a")
    swept = store.sweep()
    assert [(m.stage, m.fence) for m in swept.messages] == [("init", 2)]
    assert claim(store, swept.messages[0]).attempt == 2
    lapse(either_client, "a")
    assert store.sweep().ended == ["a"]
    result = store.result("a")
    assert result.state == "failed"
    assert result.error is not None
    assert (result.error.kind, result.error.retryable) == ("lost_worker", True)


def test_leases_lapse_by_the_servers_clock_and_beats_renew_them(make_store: Callable[..., JobStore]) -> None:
    store = make_store(lease_seconds=0.5)
    kept, lost = to_rollout(store, "kept"), to_rollout(store, "lost")
    deadline = time.monotonic() + 20
    swept: list[Message] = []
    while not swept:
        assert time.monotonic() < deadline
        assert store.heartbeat([("kept", kept.fence)]).lost == set()
        swept = store.sweep().messages
    assert [m.job_id for m in swept] == ["lost"]
    assert store.heartbeat([("kept", kept.fence), ("lost", lost.fence)]).lost == {"lost"}


def test_a_zombie_revives_nothing_and_writes_nothing(store: JobStore, either_client: redis.Redis) -> None:
    zombie = to_rollout(store)
    lapse(either_client, "a")
    store.sweep()
    before = snapshot(either_client)
    assert store.heartbeat([("a", zombie.fence)]).lost == {"a"}
    with pytest.raises(FenceLost):
        store.commit(zombie, {}, next_stage="eval", queue="eval", worked_s=0)
    assert snapshot(either_client) == before


def test_a_lost_eval_is_repeated_alone(store: JobStore, either_client: redis.Redis) -> None:
    to_eval(store)
    lapse(either_client, "a")
    message = store.sweep().messages[0]
    assert (message.stage, message.queue) == ("eval", "eval")
    again = claim(store, message)
    assert (again.rollout, again.attempt) == ({"answer": "x"}, 1)


def test_a_loss_in_company_is_not_charged_until_the_third(store: JobStore, either_client: redis.Redis) -> None:
    claim(store, submit(store, "bad"))
    claim(store, submit(store, "neighbour"))
    for losses in (1, 2):
        lapse(either_client, "bad", "neighbour")
        claims = [claim(store, message) for message in store.sweep().messages]
        assert {(one.attempt, one.losses) for one in claims} == {(1, losses)}
    lapse(either_client, "bad", "neighbour")
    assert {claim(store, message).attempt for message in store.sweep().messages} == {2}


def test_leases_that_lapsed_while_nobody_could_renew_them_live_once_more(
    store: JobStore, either_client: redis.Redis
) -> None:
    rollout = to_rollout(store)
    store.sweep()
    lapse(either_client, "a")
    either_client.set("prorl:swept", 1)
    assert store.sweep().messages == []
    assert store.heartbeat([("a", rollout.fence)]).lost == set()
    lapse(either_client, "a")
    assert [message.job_id for message in store.sweep().messages] == ["a"]


def test_a_loss_alone_is_charged_at_once(store: JobStore, either_client: redis.Redis) -> None:
    claim(store, submit(store, "one"), process="p1")
    claim(store, submit(store, "two"), process="p2")
    lapse(either_client, "one", "two")
    assert {claim(store, message).attempt for message in store.sweep().messages} == {2}


def test_a_cancel_that_no_worker_acts_on_is_carried_out(store: JobStore, either_client: redis.Redis) -> None:
    rollout = to_rollout(store)
    store.cancel("a")
    assert store.sweep().ended == []
    either_client.zadd("prorl:cancels", {"a": 1})
    assert store.sweep().ended == ["a"]
    assert store.status("a").state == "cancelled"
    with pytest.raises(FenceLost):
        store.finish(rollout, state="completed", finish_reason="stop", worked_s=0)


def test_a_lost_job_with_a_cancel_ends_as_cancelled(store: JobStore, either_client: redis.Redis) -> None:
    to_rollout(store)
    store.cancel("a")
    lapse(either_client, "a")
    assert store.sweep().ended == ["a"]
    assert store.status("a").state == "cancelled"


def test_a_message_gone_from_an_empty_queue_is_published_again(store: JobStore, either_client: redis.Redis) -> None:
    message = submit(store)
    assert store.sweep().messages == []
    age(either_client, store, 60)
    assert store.sweep().messages == [message]
    assert store.sweep().messages == []
    assert claim(store, message).fence == 1


def test_a_backlog_is_not_doubled(store: JobStore, either_client: redis.Redis) -> None:
    messages = [submit(store, f"j{number}") for number in range(20)]
    for message in messages:
        publish(either_client, message)
    for _ in range(4):
        assert store.sweep().messages == []
        age(either_client, store, 60)
    either_client.rpop("init\x06\x163")
    claim(store, messages[0])
    for _ in range(4):
        assert store.sweep().messages == []
        age(either_client, store, 60)


def test_a_message_that_its_queue_has_passed_by_is_published_again(store: JobStore, either_client: redis.Redis) -> None:
    lost, later, last = (submit(store, job) for job in ("lost", "later", "last"))
    publish(either_client, last)
    claim(store, later)
    assert store.sweep().messages == []
    age(either_client, store, 60)
    assert store.sweep().messages == [lost]
    publish(either_client, lost)
    age(either_client, store, 60)
    assert store.sweep().messages == []


def test_lanes_of_other_priorities_do_not_count_as_passing(store: JobStore, either_client: redis.Redis) -> None:
    publish(either_client, submit(store, "low", priority=0))
    claim(store, submit(store, "high", priority=9))
    for _ in range(4):
        assert store.sweep().messages == []
        age(either_client, store, 60)


def test_a_message_a_worker_has_just_taken_is_not_lost(store: JobStore) -> None:
    submit(store)
    for _ in range(3):
        assert store.sweep().messages == []


def test_jobs_that_wait_for_a_dead_node_start_over_uncharged(store: JobStore, either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b1"})
    init = claim(store, submit(store))
    message = store.commit(init, {}, next_stage="rollout", queue="rollout.n1.b1", worked_s=0, node="n1")
    publish(either_client, message)
    age(either_client, store, 60)
    assert store.sweep().messages == []
    nodes.remove("n1", "b1")
    again = store.sweep().messages
    assert [(m.stage, m.queue) for m in again] == [("init", "init")]
    assert store.live_on("n1") == {}
    assert claim(store, again[0]).attempt == 1
    assert store.claim("rollout", "a", message.fence, node="n1", process="p", op="o") is None
    assert either_client.exists("rollout.n1.b1\x06\x163") == 0
    assert either_client.smembers("prorl:queues") == {b"init"}


def test_jobs_that_wait_for_a_node_that_has_said_that_it_stops_go_elsewhere_at_once(
    store: JobStore, either_client: redis.Redis
) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b1"})
    for job, boot in (("stays", "b0"), ("goes", "b1")):  # of b0 nobody knows yet: it may only just begin
        init = claim(store, submit(store, job))
        store.commit(init, {}, next_stage="rollout", queue=f"rollout.n1.{boot}", worked_s=0, node="n1")
    nodes.remove("n1", "b1")
    assert [(m.stage, m.queue, m.job_id) for m in store.sweep().messages] == [("init", "init", "goes")]
    assert either_client.exists("prorl:nodes", "prorl:nodes:seen") == 0


def test_an_eval_bound_to_a_node_that_died_under_it_starts_over(store: JobStore, either_client: redis.Redis) -> None:
    rollout = to_rollout(store)
    message = store.commit(rollout, {}, next_stage="eval", queue="eval.n1.b1", worked_s=0, node="n1", sandboxes=["s"])
    claim(store, message)
    lapse(either_client, "a")
    assert [m.stage for m in store.sweep().messages] == ["init"]


def eval_on_a_node(store: JobStore, *, bound: bool) -> Message:
    """The message of a job's eval, on a node that lives."""
    return store.commit(
        to_rollout(store), {"answer": "x"}, next_stage="eval", queue="eval.n1.b1", worked_s=0, node="n1",
        sandboxes=["kept", "ahead"], bound=bound,
    )  # fmt: skip


def test_an_eval_that_can_do_without_its_sandboxes_leaves_a_node_that_died(
    store: JobStore, either_client: redis.Redis
) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b1"})
    eval_on_a_node(store, bound=False)
    assert store.live_on("n1") == {"a": (2, frozenset({"kept", "ahead"}))}
    age(either_client, store, 60)
    assert store.sweep().messages == []
    nodes.remove("n1", "b1")
    (again,) = store.sweep().messages
    assert (again.stage, again.queue) == ("eval", "eval")
    assert store.live_on("n1") == {}
    got = claim(store, again, node="n2")
    assert (got.rollout, got.attempt, got.sandboxes) == ({"answer": "x"}, 1, ())


@pytest.mark.parametrize("bound", [True, False])
def test_a_lost_eval_goes_back_to_its_sandboxes_only_if_it_needs_them(
    store: JobStore, either_client: redis.Redis, bound: bool
) -> None:
    NodeRegistry(either_client, Settings()).beat({"node": "n1", "boot": "b1"})
    claim(store, eval_on_a_node(store, bound=bound))
    lapse(either_client, "a")
    (again,) = store.sweep().messages
    assert (again.stage, again.queue) == ("eval", "eval.n1.b1" if bound else "eval")
    assert claim(store, again).sandboxes == (("kept", "ahead") if bound else ())


@pytest.mark.parametrize("bound", [True, False])
def test_an_eval_that_is_handed_back_goes_to_its_sandboxes_only_if_it_needs_them(
    store: JobStore, either_client: redis.Redis, bound: bool
) -> None:
    NodeRegistry(either_client, Settings()).beat({"node": "n1", "boot": "b1"})
    again = store.hand_back(claim(store, eval_on_a_node(store, bound=bound)), waited_s=0)
    assert (again.stage, again.queue) == ("eval", "eval.n1.b1" if bound else "eval")
    got = claim(store, again)
    assert (got.attempt, got.sandboxes) == (1, ("kept", "ahead") if bound else ())


def test_one_process_leads_until_it_stops_asking(make_store: Callable[..., JobStore]) -> None:
    store = make_store(sweep_seconds=0.1)
    assert store.lead("one")
    assert store.lead("one")
    assert not store.lead("two")
    deadline = time.monotonic() + 20
    while not store.lead("two"):
        assert time.monotonic() < deadline
    assert not store.lead("one")


def test_a_sweep_does_a_bounded_amount_of_work(redis_store: JobStore, redis_client: redis.Redis) -> None:
    redis_store.create([request(f"j{number}") for number in range(450)])
    for number in range(450):
        claim(redis_store, Message("init", "init", f"j{number}", 0, 5), process=f"p{number}")
    redis_client.zadd("prorl:leases", dict.fromkeys(redis_client.zrange("prorl:leases", 0, -1), 1))
    assert [len(redis_store.sweep().messages) for _ in range(4)] == [200, 200, 50, 0]
