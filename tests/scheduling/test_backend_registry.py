import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from pydantic import ValidationError
from redis_fixtures import claim, request, submit, to_rollout

from prorl_celery.errors import BackendError, FenceLost
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import Backend, BackendRegistry, BackendSpec
from prorl_celery.settings import Settings

RETRY = JobError(kind="backend", stage="rollout", message="m", retryable=True)


@pytest.fixture
def registry(either_client: redis.Redis) -> BackendRegistry:
    return BackendRegistry(either_client, Settings())


@pytest.fixture
def running(store: JobStore) -> Callable[[], Claim]:
    numbers: Iterator[int] = iter(range(10_000))
    return lambda: to_rollout(store, f"j{next(numbers)}")


def backend(name: str, **fields: object) -> Backend:
    return Backend.model_validate({"url": f"http://{name}", "model": "m", "gives_ids": True, **fields})


def take(registry: BackendRegistry, job: Claim, **fields: object) -> str | None:
    got = registry.acquire(job.job_id, job.fence, **{"model": "m", "mode": None, **fields})  # type: ignore[arg-type]
    return got.url if got else None


def assigned(registry: BackendRegistry) -> dict[str, int]:
    return {one.url: one.assigned for one in registry.list()}


def test_a_backend_is_what_was_put(registry: BackendRegistry) -> None:
    put = backend("a", weight=2.5, api_key="secret", kind="chat", policy_version=3, max_model_len=4096)
    registry.put(put)
    assert registry.get("http://a") == put
    assert registry.get("http://b") is None
    assert "secret" not in repr(put)
    changed = registry.change("http://a", policy_version=4, more_errors=2)
    assert changed == put.model_copy(update={"policy_version": 4, "errors": 2})
    assert registry.get("http://a") == changed
    assert not registry.set_state("http://b", "down")
    assert not registry.remove("http://b", "now")


def test_the_backend_with_the_fewest_live_jobs_is_given(
    registry: BackendRegistry, running: Callable[[], Claim]
) -> None:
    for name in "abc":
        registry.put(backend(name))
    got = [take(registry, running()) for _ in range(9)]
    assert Counter(got) == {"http://a": 3, "http://b": 3, "http://c": 3}
    assert assigned(registry) == {"http://a": 3, "http://b": 3, "http://c": 3}


def test_jobs_are_spread_by_weight(registry: BackendRegistry, running: Callable[[], Claim]) -> None:
    registry.put(backend("small", weight=1))
    registry.put(backend("large", weight=3))
    for _ in range(16):
        take(registry, running())
    assert assigned(registry) == {"http://large": 12, "http://small": 4}


def test_ties_are_broken_at_random(registry: BackendRegistry, running: Callable[[], Claim], store: JobStore) -> None:
    for name in "abcd":
        registry.put(backend(name))
    first = set()
    for _ in range(40):
        job = running()
        first.add(take(registry, job))
        store.finish(job, state="failed", finish_reason="error", worked_s=0)
    assert len(first) == 4


def test_a_job_keeps_its_backend(registry: BackendRegistry, running: Callable[[], Claim]) -> None:
    for name in "abcd":
        registry.put(backend(name))
    job = running()
    assert len({take(registry, job) for _ in range(20)}) == 1
    assert sum(assigned(registry).values()) == 1


def test_a_late_joiner_takes_its_share_and_no_more(registry: BackendRegistry, running: Callable[[], Claim]) -> None:
    registry.put(backend("old"))
    for _ in range(4):
        take(registry, running())
    registry.put(backend("new"))
    for _ in range(8):
        take(registry, running())
    assert assigned(registry) == {"http://new": 6, "http://old": 6}


def test_only_backends_that_will_do_are_given(registry: BackendRegistry, running: Callable[[], Claim]) -> None:
    registry.put(backend("ids", policy_version=1))
    registry.put(backend("chat", kind="chat", gives_ids=False, policy_version=2))
    registry.put(backend("other", model="other"))
    assert {take(registry, running(), mode="tokens") for _ in range(4)} == {"http://ids"}
    assert take(registry, running(), policy_version=2) == "http://chat"
    assert take(registry, running(), policy_version=2, mode="tokens") is None
    assert take(registry, running(), model="none such") is None
    assert take(registry, running(), exclude=["http://ids"], mode="tokens") is None
    assert take(registry, running(), model="other") == "http://other"


def test_without_a_model_the_only_one_served_is_meant(registry: BackendRegistry, running: Callable[[], Claim]) -> None:
    assert take(registry, running(), model=None) is None
    registry.put(backend("a"))
    assert take(registry, running(), model=None) == "http://a"
    registry.put(backend("b", model="another"))
    with pytest.raises(BackendError, match="name a model: another, m are served"):
        take(registry, running(), model=None)


def test_a_drained_backend_keeps_its_jobs_gets_none_and_goes_with_the_last(
    registry: BackendRegistry, running: Callable[[], Claim], store: JobStore
) -> None:
    registry.put(backend("a"))
    job = running()
    assert take(registry, job) == "http://a"
    assert registry.remove("http://a", "drain")
    assert take(registry, running()) is None
    assert take(registry, job) == "http://a"
    assert [(one.state, one.assigned) for one in registry.list()] == [("draining", 1)]
    store.finish(job, state="failed", finish_reason="error", worked_s=0)
    assert registry.list() == []


def test_a_backend_taken_away_now_gives_its_jobs_another_once(
    registry: BackendRegistry, running: Callable[[], Claim]
) -> None:
    registry.put(backend("a"))
    jobs = [running() for _ in range(4)]
    assert {take(registry, job) for job in jobs} == {"http://a"}
    registry.put(backend("b"))
    assert registry.remove("http://a", "now")
    assert {take(registry, job) for job in jobs} == {"http://b"}
    assert assigned(registry) == {"http://b": 4}
    registry.put(backend("a"))
    assert {take(registry, job) for job in jobs} == {"http://b"}
    assert assigned(registry) == {"http://a": 0, "http://b": 4}


def test_a_backend_that_is_down_loses_its_jobs_and_comes_back_empty(
    registry: BackendRegistry, running: Callable[[], Claim]
) -> None:
    registry.put(backend("a"))
    job = running()
    take(registry, job)
    assert registry.set_state("http://a", "down")
    assert take(registry, job) is None
    assert assigned(registry) == {"http://a": 0}
    assert registry.set_state("http://a", "up")
    assert take(registry, job) == "http://a"


@pytest.mark.parametrize("end", ["finish", "fail", "retry", "hand_back", "commit", "sweep", "cancel"])
def test_however_a_job_leaves_its_slot_is_given_back(
    registry: BackendRegistry, store: JobStore, either_client: redis.Redis, end: str
) -> None:
    registry.put(backend("a"))
    job = to_rollout(store)
    take(registry, job)
    assert store.status("a").backend == "http://a"
    if end == "finish":
        store.finish(job, state="timed_out", finish_reason="timeout", worked_s=0)
    elif end == "commit":
        store.commit(job, {}, next_stage="eval", queue="eval", worked_s=0)
    elif end == "hand_back":
        store.hand_back(job, waited_s=0)
    elif end in {"fail", "retry"}:
        store.fail(job, RETRY.model_copy(update={"retryable": end == "retry"}), worked_s=0)
    else:
        if end == "cancel":
            store.cancel("a")
        either_client.zadd("prorl:leases", {f"{job.fence}|a": 1})
        store.sweep()
    assert assigned(registry) == {"http://a": 0}
    assert either_client.zscore("prorl:heap:m", "http://a") == 0


def test_a_stale_claim_takes_no_backend(registry: BackendRegistry, store: JobStore) -> None:
    registry.put(backend("a"))
    stale = to_rollout(store)
    store.hand_back(stale, waited_s=0)
    with pytest.raises(FenceLost):
        take(registry, stale)
    assert assigned(registry) == {"http://a": 0}


def test_waiting_jobs_are_told_when_a_backend_becomes_usable(
    redis_client: redis.Redis, redis_settings: Settings
) -> None:
    registry = BackendRegistry(redis_client, redis_settings)
    with redis_client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe("prorl:backends")
        heard.get_message(timeout=5)
        registry.put(backend("a", state="down"))
        registry.set_state("http://a", "up")
        message = heard.get_message(timeout=5)
    assert message
    assert message["data"] == b"m"


def test_counts_stay_exact_under_many_threads_and_forgotten_scripts(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings
) -> None:
    registry = BackendRegistry(redis_client, redis_settings)
    for name in "abcd":
        registry.put(backend(name))
    redis_store.create([request(f"j{number}") for number in range(384)])

    def live(number: int) -> tuple[str, str] | None:
        dice = random.Random(number)
        if dice.random() < 0.02:
            redis_client.script_flush()
        got = redis_store.claim("init", f"j{number}", 0, node="n1", process="p", op="o")
        assert got is not None
        url = take(registry, got)
        assert url is not None
        assert take(registry, got) == url
        way = dice.random()
        if way < 0.4:
            redis_store.finish(got, state="failed", finish_reason="error", worked_s=0)
        elif way < 0.6:
            redis_store.fail(got, RETRY, worked_s=0)
        elif way < 0.7:
            moved = take(registry, got, exclude=[url])
            assert moved is not None
            assert moved != url
            return got.job_id, moved
        else:
            return got.job_id, url
        return None

    with ThreadPoolExecutor(64) as pool:
        kept = [one for one in pool.map(live, range(384)) if one]
    count = Counter(url for _, url in kept)
    assert assigned(registry) == {f"http://{name}": count[f"http://{name}"] for name in "abcd"}
    for url, number in count.items():
        assert redis_client.zscore("prorl:heap:m", url) == number
        assert redis_client.smembers(f"prorl:assigned:{url}") == {job.encode() for job, at in kept if at == url}


def test_a_spec_refuses_what_is_no_backend() -> None:
    assert BackendSpec.model_validate({"url": "http://h:1/v1", "model": "m"}).kind == "vllm"
    for wrong in ({"url": "ftp://h"}, {"weight": 0}, {"weight": float("inf")}, {"kind": "x"}, {"more": 1}):
        with pytest.raises(ValidationError):
            BackendSpec.model_validate({"url": "http://h", "model": "m", **wrong})


def test_a_queued_job_has_no_backend(store: JobStore) -> None:
    claim(store, submit(store))
    assert store.status("a").backend is None
