from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis_fixtures import claim, complete, request, snapshot, submit

from prorl_celery.errors import JobConflict, QueueFull, TooLarge
from prorl_celery.jobs.messages import Message, broker_list, node_queue, parse_queue
from prorl_celery.jobs.store import JobStore


def test_the_same_job_fifty_times_at_once_is_made_once(redis_store: JobStore) -> None:
    with ThreadPoolExecutor(50) as pool:
        made = list(pool.map(lambda _: redis_store.create([request("a")])[0], range(50)))
    assert sum(one.fresh for one in made) == 1
    assert [one.message for one in made if one.message] == [Message("init", "init", "a", 0, 5)]
    assert redis_store.counts()["queued"] == 1


def test_the_order_of_fields_does_not_make_another_body(store: JobStore) -> None:
    store.create([request("a", instance={"data_source": "s", "x": 1, "y": 2})])
    again = store.create([request("a", instance={"y": 2, "x": 1, "data_source": "s"})])
    assert not again[0].fresh
    assert again[0].message is None


def test_a_list_with_one_conflict_is_refused_as_a_whole(store: JobStore, either_client: redis.Redis) -> None:
    submit(store, "b")
    before = snapshot(either_client)
    with pytest.raises(JobConflict, match="b was accepted before") as caught:
        store.create([request("a"), request("b", priority=9), request("c")])
    assert caught.value.job_id == "b"
    assert snapshot(either_client) == before


def test_a_thousand_jobs_are_one_call(store: JobStore) -> None:
    made = store.create([request(f"j{i}") for i in range(1000)])
    assert all(one.fresh for one in made)
    assert store.counts()["init"] == 1000


def test_jobs_past_the_limit_are_refused_but_known_ones_are_not(
    make_store: Callable[..., JobStore], either_client: redis.Redis
) -> None:
    store = make_store(max_queued=2)
    store.create([request("a"), request("b")])
    before = snapshot(either_client)
    with pytest.raises(QueueFull, match="the limit of 2"):
        store.create([request("c")])
    assert snapshot(either_client) == before
    assert not store.create([request("a"), request("b")])[0].fresh


def test_the_limit_counts_jobs_until_they_are_past_init(make_store: Callable[..., JobStore]) -> None:
    store = make_store(max_queued=1)
    init = claim(store, submit(store, "a"))
    with pytest.raises(QueueFull):
        store.create([request("b")])
    store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0)
    assert store.create([request("b")])[0].fresh


def test_an_instance_over_the_limit_is_refused(make_store: Callable[..., JobStore]) -> None:
    with pytest.raises(TooLarge, match=r"the request is \d+ bytes, over the limit of 2048 bytes"):
        make_store(max_blob_bytes=2048).create([request("a", instance={"data_source": "s", "x": "y" * 4000})])


def test_an_accepted_jobs_request_comes_back_as_it_was(store: JobStore) -> None:
    sent = request(
        "a",
        instance={"data_source": "s", "deep": {"list": [1, None, "\u2028"]}, "big": 2**70},
        timeouts={"init": 5},
        tags={"run": "a"},
        agent={"tools": ["bash"], "max_turns": 3},
        policy_version=7,
    )
    message = store.create([sent], group_id="g", batch_id="b")[0].message
    assert message is not None
    got = claim(store, message)
    assert got.request == sent
    assert (got.batch_id, got.group_id) == ("b", "g")
    status = store.status("a")
    assert (status.batch_id, status.group_id, status.tags) == ("b", "g", {"run": "a"})


def test_a_job_that_ended_is_accepted_again_without_running_again(store: JobStore) -> None:
    complete(store, "a")
    again = store.create([request("a")])[0]
    assert (again.fresh, again.message) == (False, None)
    assert store.status("a").state == "completed"


@pytest.mark.parametrize(("priority", "level"), [(9, 0), (7, 0), (6, 3), (5, 3), (4, 3), (3, 6), (0, 9)])
def test_priorities_map_to_the_brokers_levels(priority: int, level: int) -> None:
    assert Message("init", "init", "a", 0, priority).level == level


def test_node_queues_can_be_taken_apart_even_when_the_node_has_dots() -> None:
    assert parse_queue(node_queue("eval", "n1.cluster", "b00t")) == ("eval", "n1.cluster", "b00t")
    assert parse_queue("rollout") is None
    assert broker_list("init", 0) == "init"
    assert broker_list("init", 6) == "init\x06\x166"
