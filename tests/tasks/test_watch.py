"""Who hears that a backend has gone, and when."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from prorl_celery.errors import BackendGone, Cancelled, StageTimeout
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings
from tasks import watch as watching
from tasks.signals import JobSignal
from tasks.watch import BackendWatch, CallSignal

A = Backend.model_validate({"url": "http://a", "model": "m", "policy_version": 3})


@pytest.fixture
def job() -> Iterator[JobSignal]:
    signal = JobSignal()
    yield signal
    signal.close()


@pytest.fixture
def call(job: JobSignal) -> Iterator[CallSignal]:
    signal = CallSignal(job, None)
    signal.at(A)
    yield signal
    signal.close()


@pytest.fixture
def registry(redis_client: redis.Redis, redis_settings: Settings) -> BackendRegistry:
    return BackendRegistry(redis_client, redis_settings)


def readable(signal: CallSignal) -> bool:
    poll = select.poll()
    poll.register(signal.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_a_loss_is_told_until_the_conversation_is_elsewhere(call: CallSignal) -> None:
    call.judge("http://a", A)
    call.judge("http://b", None)
    call.raise_if_set()
    assert not readable(call)
    call.judge("http://a", A.model_copy(update={"state": "down"}))
    call.judge("http://a", None)
    assert (call.is_set, call.lost, readable(call)) == (True, True, True)
    with pytest.raises(BackendGone, match="http://a is down") as caught:
        call.raise_if_set()
    assert caught.value.url == "http://a"
    call.at(A.model_copy(update={"url": "http://b"}))
    call.raise_if_set()
    assert (call.is_set, call.lost, readable(call)) == (False, False, False)


def test_the_jobs_own_reason_goes_first(call: CallSignal, job: JobSignal) -> None:
    call.judge("http://a", None)
    job.set(Cancelled("somebody did"))
    assert readable(call)
    with pytest.raises(Cancelled):
        call.raise_if_set()
    assert call.lost


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({"state": "draining"}, True),
        ({"weight": 2.0, "errors": 9}, True),
        ({"policy_version": 4}, False),
        ({"model": "n"}, False),
        ({"state": "down"}, False),
    ],
)
def test_what_ends_a_stay(job: JobSignal, changes: dict[str, object], stays: bool) -> None:
    pinned = CallSignal(job, 3)
    pinned.at(A)
    pinned.judge("http://a", A.model_copy(update=changes))
    assert pinned.lost is not stays
    pinned.close()
    pinned.judge("http://a", None)  # harmless


def test_a_message_that_was_missed_costs_seconds(
    registry: BackendRegistry, call: CallSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.put(A)
    watch = BackendWatch(registry, ModelLoop())
    watch.add(call)
    registry.set_state("http://a", "down")
    watch.idle()
    assert not call.lost
    monkeypatch.setattr(watching, "LOOK_AGAIN_SECONDS", 0.0)
    watch.idle()
    assert call.lost


def test_who_watches_no_more_hears_nothing(registry: BackendRegistry, call: CallSignal) -> None:
    watch = BackendWatch(registry, ModelLoop())
    watch.add(call)
    watch.discard(call)
    watch.heard()
    assert not call.lost
    assert watch.changes == 1


def test_a_loop_that_is_held_up_says_nothing_of_a_backend_and_ends_no_stage(
    registry: BackendRegistry, job: JobSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage has all the time that it needs: it must not end as timed out."""

    async def held_up(session: object, url: str) -> bool:
        await asyncio.sleep(60)
        return False

    monkeypatch.setattr(watching, "well", held_up)
    monkeypatch.setattr(watching, "PROBE_SECONDS", 0.05)
    registry.put(A)
    models = ModelLoop()
    try:
        watch = BackendWatch(registry, models)
        assert not watch.has_gone("http://a", job)
        job.set(StageTimeout("the stage's own time is up"))
        registry.put(A.model_copy(update={"url": "http://b"}))
        with pytest.raises(StageTimeout, match="own time"):
            watch.has_gone("http://b", job)
    finally:
        models.stop()


def test_a_store_that_is_away_ends_no_call(call: CallSignal, tmp_path: object) -> None:
    client = redis.Redis(unix_socket_path=f"{tmp_path}/nowhere", retry=Retry(NoBackoff(), 0))
    watch = BackendWatch(BackendRegistry(client, Settings()), ModelLoop())
    watch.add(call)
    watch.heard()
    assert not call.lost
