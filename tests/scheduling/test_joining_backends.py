"""A backend that joins late, or comes back, catches up by steps and is never flooded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis_fixtures import to_rollout

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings


@pytest.fixture
def registry(either_client: redis.Redis) -> BackendRegistry:
    return BackendRegistry(either_client, Settings())


@pytest.fixture
def job(store: JobStore) -> Callable[[], Claim]:
    numbers: Iterator[int] = iter(range(10_000))
    return lambda: to_rollout(store, f"j{next(numbers)}")


def put(registry: BackendRegistry, *names: str, **fields: object) -> None:
    for name in names:
        registry.put(Backend.model_validate({"url": f"http://{name}", "model": "m", **fields}))


def take(registry: BackendRegistry, claim: Claim, **fields: object) -> str:
    got = registry.acquire(claim.job_id, claim.fence, **{"model": "m", "mode": None, **fields})  # type: ignore[arg-type]
    assert got is not None
    return got.url.removeprefix("http://")


def assigned(registry: BackendRegistry) -> dict[str, int]:
    return {one.url.removeprefix("http://"): one.assigned for one in registry.list()}


def test_a_joiner_never_gets_more_than_twice_its_share_until_it_is_level(
    registry: BackendRegistry, job: Callable[[], Claim]
) -> None:
    put(registry, *"abcd")
    for _ in range(40):
        take(registry, job())
    put(registry, "late")
    got = [take(registry, job()) for _ in range(90)]
    for window in (10, 15, 20, 40):
        most = max(got[at : at + window].count("late") for at in range(len(got) - window + 1))
        assert most <= 2 * window / 5
    live = assigned(registry)
    assert sum(live.values()) == 130
    assert max(live.values()) - min(live.values()) <= 1


def test_a_backend_that_comes_back_catches_up_in_the_same_way(
    registry: BackendRegistry, job: Callable[[], Claim]
) -> None:
    put(registry, *"abcd")
    jobs = [job() for _ in range(40)]
    for one in jobs:
        take(registry, one)
    registry.set_state("http://a", "down")
    moved = [take(registry, one) for one in jobs]
    assert "a" not in moved
    registry.set_state("http://a", "up")
    assert [take(registry, one) for one in jobs] == moved  # nobody moves back
    got = [take(registry, job()) for _ in range(16)]
    assert 4 <= got.count("a") <= 8


def test_joiners_at_the_same_time_share_what_joiners_get(registry: BackendRegistry, job: Callable[[], Claim]) -> None:
    put(registry, *"ab")
    for _ in range(20):
        take(registry, job())
    put(registry, *"cd")
    got = [take(registry, job()) for _ in range(16)]
    assert {got.count("c"), got.count("d")} <= {5, 6}


def test_a_heavier_joiner_has_a_heavier_share(registry: BackendRegistry, job: Callable[[], Claim]) -> None:
    put(registry, *"abc")
    for _ in range(30):
        take(registry, job())
    put(registry, "heavy", weight=3)
    got = [take(registry, job()) for _ in range(20)]
    assert 12 <= got.count("heavy") <= 15


def test_a_joiner_is_given_when_no_other_will_do(registry: BackendRegistry, job: Callable[[], Claim]) -> None:
    put(registry, *"ab", policy_version=1)
    for _ in range(10):
        take(registry, job())
    put(registry, "new", policy_version=2)
    assert {take(registry, job(), policy_version=2) for _ in range(5)} == {"new"}


def test_registering_again_changes_nothing(registry: BackendRegistry, job: Callable[[], Claim]) -> None:
    """A trainer may register all its backends before each step."""
    put(registry, *"abcd")
    for _ in range(40):
        take(registry, job())
        put(registry, *"abcd")
    assert set(assigned(registry).values()) == {10}


def test_a_joiner_is_level_when_the_others_have_become_as_idle(
    registry: BackendRegistry, job: Callable[[], Claim], store: JobStore, either_client: redis.Redis
) -> None:
    put(registry, "a")
    jobs = [job() for _ in range(4)]
    for one in jobs:
        take(registry, one)
    put(registry, "b")
    for one in jobs:
        store.finish(one, state="failed", finish_reason="error", worked_s=0)
    take(registry, job())
    assert not either_client.exists("prorl:joining:m")


def test_a_joiner_that_goes_again_leaves_no_trace(
    registry: BackendRegistry, job: Callable[[], Claim], either_client: redis.Redis
) -> None:
    put(registry, "a")
    take(registry, job())
    put(registry, "b")
    assert either_client.exists("prorl:joining:m")
    put(registry, "b", model="other")
    assert not either_client.exists("prorl:joining:m")
    put(registry, "b")
    registry.remove("http://b", "now")
    assert not either_client.exists("prorl:joining:m")
    assert take(registry, job()) == "a"


def test_models_stand_side_by_side(registry: BackendRegistry, job: Callable[[], Claim]) -> None:
    put(registry, *"ab")
    put(registry, *"cd", model="other")
    for _ in range(6):
        take(registry, job())
        take(registry, job(), model="other")
    assert assigned(registry) == dict.fromkeys("abcd", 3)


def test_two_front_ends_agree(registry: BackendRegistry, either_client: redis.Redis, job: Callable[[], Claim]) -> None:
    put(registry, *"abcd")
    second = BackendRegistry(either_client, Settings())
    jobs = [job() for _ in range(20)]
    first = [take(registry if n % 2 else second, one) for n, one in enumerate(jobs)]
    assert first == [take(second if n % 2 else registry, one) for n, one in enumerate(jobs)]
    assert assigned(second) == dict.fromkeys("abcd", 5)


def test_a_recount_strikes_what_is_not_assigned(
    registry: BackendRegistry, job: Callable[[], Claim], either_client: redis.Redis, store: JobStore
) -> None:
    put(registry, *"ab")
    jobs = [job() for _ in range(6)]
    for one in jobs:
        take(registry, one)
    either_client.sadd("prorl:assigned:http://a", "never", "was")
    theirs = next(one.job_id for one in jobs if store.status(one.job_id).backend == "http://b")
    either_client.sadd("prorl:assigned:http://a", theirs)
    either_client.zadd("prorl:heap:m", {"http://a": 6})
    assert registry.recount() == 3
    assert assigned(registry) == {"a": 3, "b": 3}
    assert either_client.zscore("prorl:heap:m", "http://a") == 3
    assert registry.recount() == 0


def test_what_drains_and_dies_is_gone_and_its_jobs_go_elsewhere(
    registry: BackendRegistry, job: Callable[[], Claim]
) -> None:
    put(registry, "a")
    one = job()
    take(registry, one)
    put(registry, "b")
    registry.remove("http://a", "drain")
    assert take(registry, one) == "a"
    assert registry.change("http://a", state="down") is None
    assert take(registry, one) == "b"
    assert assigned(registry) == {"b": 1}


def test_a_chat_backend_that_gives_ids_is_none_for_token_jobs(
    registry: BackendRegistry, job: Callable[[], Claim]
) -> None:
    put(registry, "chat", kind="chat", gives_ids=True)
    one = job()
    assert registry.acquire(one.job_id, one.fence, model="m", mode="tokens") is None
    assert take(registry, one, mode="chat") == "chat"


def test_processes_hear_of_what_happened_to_a_backend(redis_client: redis.Redis, redis_settings: Settings) -> None:
    registry = BackendRegistry(redis_client, redis_settings)
    with redis_client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe("prorl:backends")
        heard.get_message(timeout=5)

        def next_message() -> str:
            message = heard.get_message(timeout=5)
            return message["data"].decode() if message else "nothing"

        put(registry, "a")
        assert next_message() == "m"
        registry.set_state("http://a", "down")
        assert next_message() == "http://a"
        registry.set_state("http://a", "up")
        assert next_message() == "m"
        registry.change("http://a", policy_version=2)
        assert next_message() == "m"
        registry.remove("http://a", "now")
        assert next_message() == "http://a"


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=1, max_size=6),
    weight=st.sampled_from([0.5, 1.0, 2.0]),
    before=st.integers(1, 40),
)
def test_no_run_of_jobs_floods_a_joiner_whatever_the_weights(weights: list[float], weight: float, before: int) -> None:
    with fakeredis.FakeRedis(server=fakeredis.FakeServer()) as client:
        registry, store = BackendRegistry(client, Settings()), JobStore(client, Settings(node="n1"))
        for number, one in enumerate(weights):
            put(registry, f"old-{number}", weight=one)
        for number in range(before):
            take(registry, to_rollout(store, f"before-{number}"))
        put(registry, "late", weight=weight)
        share = weight / (sum(weights) + weight)
        got = 0
        for number in range(1, 41):
            got += take(registry, to_rollout(store, f"after-{number}")) == "late"
            if not client.exists("prorl:joining:m"):
                break  # it is level
            assert got <= 1.5 * share * number + 1e-6
