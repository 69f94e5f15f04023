"""New work is refused while there is still room for what was accepted."""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest
import redis
from redis_fixtures import complete, request, submit

from prorl_celery.errors import StoreFull
from prorl_celery.jobs.store import JobStore
from prorl_celery.store.room import FULL_AT, Room


@pytest.fixture
def limited(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """A Redis with twice the memory that it uses."""
    redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"] * 2)
    yield redis_client
    redis_client.config_set("maxmemory", "0")


def test_room_is_what_is_left_below_the_mark(limited: redis.Redis) -> None:
    most = limited.info("memory")["maxmemory"]
    room = Room(limited)
    assert room.lacks(most // 10) is None
    assert room.lacks(most // 10) is None
    told = room.lacks(round(FULL_AT * most))
    assert told is not None
    assert f"of its {most} bytes (maxmemory)" in told


def test_a_crowd_of_large_jobs_does_not_get_in_between_two_questions(limited: redis.Redis) -> None:
    room, most = Room(limited), limited.info("memory")["maxmemory"]
    limited.config_resetstat()
    let_in = sum(room.lacks(most // 100) is None for _ in range(100))
    assert 0 < let_in <= FULL_AT * 100
    assert limited.info("commandstats")["cmdstat_info"]["calls"] <= 3


def test_a_redis_that_does_not_tell_has_room(redis_client: redis.Redis) -> None:
    assert Room(redis_client).lacks(1 << 40) is None, "no maxmemory, no limit"
    assert Room(fakeredis.FakeRedis(server=fakeredis.FakeServer())).lacks(1 << 40) is None


def test_a_nearly_full_store_refuses_new_jobs_and_knows_the_old(
    redis_store: JobStore, redis_client: redis.Redis
) -> None:
    submit(redis_store, "old")
    used = redis_client.info("memory")["used_memory"]
    redis_client.config_set("maxmemory", round(used * 1.1))
    try:
        fresh = JobStore(redis_client, redis_store._settings)
        with pytest.raises(StoreFull, match="maxmemory"):
            fresh.create([request("new")])
        assert [one.fresh for one in fresh.create([request("old")])] == [False]
        with pytest.raises(StoreFull):
            fresh.create([request("old"), request("new")])
        redis_client.config_set("maxmemory", "0")
        complete(JobStore(redis_client, redis_store._settings), "new")
    finally:
        redis_client.config_set("maxmemory", "0")
