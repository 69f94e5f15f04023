"""What a handler does, and what becomes of its job."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis_fixtures import claim, submit

from prorl_celery.errors import FenceLost, KeeperLost, SandboxError, StageError
from prorl_celery.handlers.base import Handler
from prorl_celery.handlers.math import MathHandler
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobStatus
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn, ids_array, logprobs_array
from prorl_celery.settings import Settings
from prorl_celery.store.clients import script_client
from tasks.acts import Acts
from tasks.beat import Beat, Held
from tasks.clock import DeadlineThread, StageClock
from tasks.process import StageProcess
from tasks.signals import JobSignal

Drive = Callable[..., JobStatus]


class Plain(Handler):
    """Does nothing, well."""

    data_source = "plain"
    uses_sandbox = False

    def rollout(self, ctx: Any) -> Any:
        return {}

    def eval(self, ctx: Any) -> Any:
        return {"reward": 1.0}


class KindOfItsOwn(StageError):
    """A user's subclass."""

    kind = "mine"


def handler_whose(stage: str, act: Callable[[Any], Any]) -> Handler:
    handler: Handler = type("Odd", (Plain,), {stage: lambda self, ctx: act(ctx)})()
    return handler


def raising(error: BaseException) -> Callable[[Any], Any]:
    def act(ctx: Any) -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SystemExit(3), "handler"),
        (asyncio.CancelledError(), "handler"),
        (ValueError("not text: \udcff"), "handler"),
        (KindOfItsOwn("odd"), "handler"),
        (SandboxError("odd", stage="set-up"), "sandbox"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_handler_raises_ends_its_job_with_a_known_kind(
    drive: Drive, error: BaseException, kind: str
) -> None:
    status = drive(handler_whose("init", raising(error)), max_attempts=1)
    assert (status.state, status.reward) == ("failed", None)
    assert status.error is not None
    assert (status.error.kind, status.error.stage) == (kind, "init")


def test_a_job_that_loses_its_keeper_each_time_has_an_end(
    drive: Drive, process: StageProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.stages.KEEPER_PAUSE_SECONDS", 0.0)
    process.stage = "solo"  # where it is sent in the end
    status = drive(handler_whose("rollout", raising(KeeperLost("gone"))), most=100)
    assert (status.state, status.attempt, status.reward) == ("failed", 3, None)
    assert status.error is not None
    assert (status.error.kind, status.error.stage) == ("sandbox", "rollout")
    assert process.store.counters()["dead"] == 1


def test_the_message_of_an_error_is_cut(drive: Drive) -> None:
    status = drive(handler_whose("rollout", raising(ValueError("x" * 1_000_000))))
    assert status.error is not None
    assert len(status.error.message) < 10_000


def nested() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def test_what_is_nested_too_deeply_is_the_handlers_fault(drive: Drive) -> None:
    status = drive(handler_whose("init", lambda _: nested()))
    assert status.error is not None
    assert status.error.kind == "handler"


@pytest.mark.parametrize("reward", [10**400, float("1e400"), True, None, "1"])
def test_a_reward_that_is_no_number_is_an_error_and_never_a_score(drive: Drive, reward: object) -> None:
    status = drive(handler_whose("eval", lambda _: {"reward": reward}), max_attempts=1)
    assert (status.state, status.reward) == ("failed", None)
    assert status.error is not None
    assert status.error.kind in {"eval", "handler"}


def test_a_handler_may_run_its_agent_more_than_once(drive: Drive, process: StageProcess) -> None:
    def turn(index: int, token: int) -> Turn:
        ids = ids_array([token])
        return Turn(index=index, sampled_ids=ids, logprobs=logprobs_array([0]), versions=ids, new_segment=index == 0)

    def rollout(ctx: Any) -> Any:
        for conversation in range(2):
            run = ctx._log.next_run()  # as `run_agent` does
            for index in range(2):
                run.turn(turn(index, 10 * conversation + index))
        return {}

    assert drive(handler_whose("rollout", rollout)).turns == 4
    assert [(turn.index, turn.run) for turn in process.store.turns("a")] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert [s.response_ids for s in process.store.result("a").segments] == [[0, 1], [10, 11]]


def held_by(got: Claim, signal: JobSignal) -> Held:
    return Held(got, signal, StageClock(60.0, got.stage, signal, DeadlineThread()), Acts(got.stage))


def test_an_older_claim_of_the_same_job_in_the_same_process_is_told_to_stop(redis_store: JobStore) -> None:
    got = claim(redis_store, submit(redis_store))
    beat = Beat(redis_store, 60.0, 60.0)
    old, new = JobSignal(), JobSignal()
    beat.hold(held_by(got, old))
    beat.hold(held_by(got, new))
    assert isinstance(old.reason, FenceLost)
    assert new.reason is None
    old.close()
    new.close()


def test_the_store_is_told_of_waits_with_the_heartbeat(redis_store: JobStore, redis_client: redis.Redis) -> None:
    got = claim(redis_store, submit(redis_store))
    told = threading.Semaphore(0)
    beat, signal = Beat(redis_store, 60.0, 60.0, also=lambda _: told.release()), JobSignal()
    held = held_by(got, signal)
    beat.start()
    try:
        beat.hold(held)
        held.clock.start()
        with held.clock.paused():
            assert not signal.is_set
            time.sleep(0.3)  # is what is measured
            beat.now()
            assert told.acquire(timeout=5)
        waited_ms = int(redis_client.hget("prorl:job:a", "waited") or 0)
        assert 300 <= waited_ms <= held.clock.waited_seconds * 1000 + 1
    finally:
        beat.stop()
        held.clock.stop()
        signal.close()


def test_the_heartbeat_outlives_whatever_redis_answers(redis_settings: Settings, redis_client: redis.Redis) -> None:
    """A server that is busy with somebody's script answers with an error that is no lost connection."""
    redis_client.config_set("busy-reply-threshold", 50)
    beats, busy_now = threading.Semaphore(0), threading.Event()
    store = JobStore(script_client(redis_settings), redis_settings)
    got = claim(store, submit(store))
    beat, signal = Beat(store, 0.05, 60.0, also=lambda _: beats.release()), JobSignal()
    beat.hold(held_by(got, signal))

    def occupy() -> None:
        busy_now.set()
        with pytest.raises(redis.ResponseError):
            redis_client.eval("while true do end", 0)

    beat.start()
    spinner = threading.Thread(target=occupy)
    try:
        assert beats.acquire(timeout=5)
        spinner.start()
        assert busy_now.wait(5)
        assert not beats.acquire(timeout=0.5) or not beats.acquire(timeout=0.5)
    finally:
        while spinner.is_alive():
            with contextlib.suppress(redis.ResponseError):
                redis.Redis.from_url(redis_settings.redis_url).script_kill()
            spinner.join(0.2)
        redis_client.config_set("busy-reply-threshold", 5000)
    while beats.acquire(blocking=False):
        pass
    assert beats.acquire(timeout=10)
    beat.stop()
    signal.close()


@pytest.mark.parametrize(
    ("answer", "reply", "reward"),
    [
        (1e-05, "It is 0.00001.", 1.0),
        (1e-05, "-5", 0.0),
        (1e22, "1e22", 1.0),
        ("3/4", "so 0.75", 1.0),
        (5, "5e9999", 0.0),
    ],
)
def test_a_number_is_the_same_number_however_it_is_written(answer: object, reply: str, reward: float) -> None:
    handler, instance = MathHandler(), {"problem": "?", "answer": answer}
    handler.validate(instance)
    ctx: Any = SimpleNamespace(instance=instance, rollout={"answer": reply}, in_child=None)
    assert handler.eval(ctx)["reward"] == reward
