"""A backend that eval has for one call: of the same heap, given back by the call or by whatever ends the claim."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from redis_fixtures import claim, to_eval, to_rollout

from prorl_celery.checking import check
from prorl_celery.errors import FenceLost
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings

FAILURE = JobError(kind="backend", stage="eval", message="m", retryable=True)


@pytest.fixture
def registry(either_client: redis.Redis) -> BackendRegistry:
    registry = BackendRegistry(either_client, Settings())
    for name, model in (("policy", "p"), ("judge", "j"), ("other", "j")):
        registry.put(Backend(url=f"http://{name}", model=model, kind="chat"))
    return registry


def counts(registry: BackendRegistry) -> dict[str, int]:
    return {one.url.removeprefix("http://"): one.assigned for one in registry.list() if one.assigned}


def heap(client: redis.Redis, model: str) -> dict[bytes, float]:
    return dict(client.zrange(f"prorl:heap:{model}", 0, -1, withscores=True))


def asks(registry: BackendRegistry, job: Claim) -> str:
    got = registry.acquire(job.job_id, job.fence, model="j", mode=None)
    assert got is not None
    return got.url


def test_rollouts_slot_is_back_before_eval_takes_its_own(registry: BackendRegistry, store: JobStore) -> None:
    rollout = to_rollout(store)
    assert registry.acquire("a", rollout.fence, model="p", mode=None)
    evaluation = claim(store, store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=1))
    assert counts(registry) == {}
    asks(registry, evaluation)
    assert sum(counts(registry).values()) == 1
    assert "policy" not in counts(registry)


def test_what_was_released_may_be_taken_again_by_the_same_claim_and_counts_once(
    registry: BackendRegistry, store: JobStore, either_client: redis.Redis
) -> None:
    evaluation = to_eval(store)
    for _ in range(3):
        url = asks(registry, evaluation)
        assert asks(registry, evaluation) == url
        assert heap(either_client, "j")[url.encode()] == 1.0
        assert registry.release("a", evaluation.fence)
        assert registry.release("a", evaluation.fence), "a replay changes nothing"
        assert set(heap(either_client, "j").values()) == {0.0}
        assert counts(registry) == {}


def test_judges_share_the_calls(registry: BackendRegistry, store: JobStore) -> None:
    urls = {asks(registry, to_eval(store, name)) for name in ("a", "b")}
    assert urls == {"http://judge", "http://other"}


def test_one_that_drains_is_gone_with_its_last_call(registry: BackendRegistry, store: JobStore) -> None:
    evaluation = to_eval(store)
    url = asks(registry, evaluation)
    registry.remove(url, "drain")
    assert registry.get(url) is not None
    registry.release("a", evaluation.fence)
    assert registry.get(url) is None


def by_finish(store: JobStore, evaluation: Claim, _: redis.Redis) -> None:
    store.finish(evaluation, state="completed", finish_reason="stop", reward=1.0, worked_s=1)


def by_failing(store: JobStore, evaluation: Claim, _: redis.Redis) -> None:
    store.fail(evaluation, FAILURE, worked_s=1)


def by_giving_it_back(store: JobStore, evaluation: Claim, _: redis.Redis) -> None:
    store.hand_back(evaluation, waited_s=0.0)


def by_a_cancel(store: JobStore, evaluation: Claim, _: redis.Redis) -> None:
    store.cancel("a")
    store.finish(evaluation, state="completed", finish_reason="stop", reward=1.0, worked_s=1)


def by_the_sweep(store: JobStore, evaluation: Claim, client: redis.Redis) -> None:
    client.zadd("prorl:leases", {f"{evaluation.fence}|a": 1})
    assert [message.stage for message in store.sweep().messages] == ["eval"]


def by_the_sweep_of_a_cancel(store: JobStore, evaluation: Claim, client: redis.Redis) -> None:
    store.cancel("a")
    client.zadd("prorl:cancels", {"a": 1})
    assert store.sweep().ended == ["a"]


@pytest.mark.parametrize(
    "ends", [by_finish, by_failing, by_giving_it_back, by_a_cancel, by_the_sweep, by_the_sweep_of_a_cancel]
)
def test_a_claim_that_ends_amid_a_call_gives_the_slot_back_once(
    registry: BackendRegistry,
    store: JobStore,
    either_client: redis.Redis,
    ends: Callable[[JobStore, Claim, redis.Redis], None],
) -> None:
    evaluation = to_eval(store)
    asks(registry, evaluation)
    assert not check(either_client, Settings(), None)
    ends(store, evaluation, either_client)
    assert counts(registry) == {}
    assert set(heap(either_client, "j").values()) == {0.0}
    assert registry.release("a", evaluation.fence) is False
    with pytest.raises(FenceLost):
        registry.acquire("a", evaluation.fence, model="j", mode=None)
    assert counts(registry) == {}
    assert not check(either_client, Settings(), None)


def test_a_worker_that_comes_back_late_takes_nothing_from_the_one_that_repeats(
    registry: BackendRegistry, store: JobStore, either_client: redis.Redis
) -> None:
    late = to_eval(store)
    asks(registry, late)
    either_client.zadd("prorl:leases", {f"{late.fence}|a": 1})
    again = claim(store, store.sweep().messages[0])
    asks(registry, again)
    assert registry.release("a", late.fence) is False
    assert sum(counts(registry).values()) == 1
