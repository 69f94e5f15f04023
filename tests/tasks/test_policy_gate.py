"""The gate of a process: who is held, who is told, and what is believed. Real Redis; the calls are the test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from prorl_celery.errors import Cancelled, StageError, StoreUnavailable
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.gate import Passage
from prorl_celery.node.pause import until
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.policy import PolicyRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client, script_client
from tasks.clock import DeadlineThread, StageClock
from tasks.gate import JobGate, PolicyGate
from tasks.listener import Listener
from tasks.signals import JobSignal

GENEROUS_SECONDS = 60.0
A = Endpoint(url="http://a", model="a", policy_version=1)
B = Endpoint(url="http://b", model="b", policy_version=1)


class Caller:
    """A job on a thread of its own that makes one call when the gate lets it, until the test ends the call."""

    def __init__(self, gate: Any, endpoint: Endpoint, deadlines: DeadlineThread) -> None:
        self.signal = JobSignal()
        self.clock = StageClock(600.0, "rollout", self.signal, deadlines)
        self.entered = threading.Event()
        self.end = threading.Event()
        self.passage: Passage | None = None
        self.interrupts: list[str] = []
        self.error: StageError | StoreUnavailable | None = None
        self._gate = gate
        self._endpoint = endpoint
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self.end.set()
        self._thread.join(GENEROUS_SECONDS)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.signal.set(Cancelled("the test is over"))
        self.join()
        self.signal.close()

    def _run(self) -> None:
        self.clock.start()
        try:
            with self._gate.call(self._endpoint, self.signal, self.clock) as passage:
                passage.interrupt = self.interrupts.append
                self.passage = passage
                self.entered.set()
                assert self.end.wait(GENEROUS_SECONDS)
        except (StageError, StoreUnavailable) as error:
            self.error = error
        finally:
            self.clock.stop()


@pytest.fixture
def policy(redis_client: redis.Redis, redis_settings: Settings) -> PolicyRegistry:
    backends = BackendRegistry(redis_client, redis_settings)
    for endpoint in (A, B):
        backends.put(Backend(url=endpoint.url, model=endpoint.model, policy_version=1))
    return PolicyRegistry(redis_client, redis_settings)


@pytest.fixture
def gate(policy: PolicyRegistry) -> PolicyGate:
    return PolicyGate(policy, "n1 b rollout-0", GENEROUS_SECONDS)


@pytest.fixture
def listening(gate: PolicyGate, redis_settings: Settings) -> Iterator[None]:
    """The gate hears of changes as it does in a stage process."""
    listener = Listener(blocking_client(redis_settings), {"prorl:policy": gate.heard})
    listener.start()
    client = script_client(redis_settings)
    assert until(lambda: dict(client.pubsub_numsub("prorl:policy"))[b"prorl:policy"] == 1, GENEROUS_SECONDS, every=0.01)
    yield
    listener.stop()


@pytest.fixture
def call() -> Iterator[Callable[..., Caller]]:
    deadlines = DeadlineThread()
    deadlines.start()
    with ExitStack() as stack:
        stack.callback(deadlines.stop)

        def start(gate: Any, endpoint: Endpoint = A) -> Caller:
            caller = Caller(gate, endpoint, deadlines)
            stack.callback(caller.close)
            return caller

        yield start


@pytest.mark.usefixtures("listening")
def test_a_pause_waits_for_calls_in_flight_and_holds_those_that_follow(
    policy: PolicyRegistry, gate: PolicyGate, call: Callable[..., Caller]
) -> None:
    early, other = call(gate), call(gate, B)
    assert early.entered.wait(GENEROUS_SECONDS)
    assert other.entered.wait(GENEROUS_SECONDS)
    epoch = policy.pause("a", "finish", 600.0)
    assert until(lambda: policy.heed(epoch, "a").acknowledged == 1, GENEROUS_SECONDS, every=0.01)
    assert policy.heed(epoch, "a").in_flight == 1
    assert (early.interrupts, other.interrupts) == (["finish"], [])
    late = call(gate)
    early.join()
    assert until(lambda: policy.heed(epoch, "a").complete, GENEROUS_SECONDS, every=0.01)
    assert not late.entered.is_set()
    assert call(gate, B).entered.wait(GENEROUS_SECONDS)  # another model's
    policy.resume("a", 2)
    assert late.entered.wait(GENEROUS_SECONDS)
    assert late.passage is not None
    assert late.passage.version == 2
    late.join()


@pytest.mark.usefixtures("listening")
def test_an_abort_is_told_to_the_calls_of_its_model(
    policy: PolicyRegistry, gate: PolicyGate, call: Callable[..., Caller]
) -> None:
    mine, other = call(gate), call(gate, B)
    assert mine.entered.wait(GENEROUS_SECONDS)
    assert other.entered.wait(GENEROUS_SECONDS)
    policy.pause("a", "finish", 600.0)
    assert until(lambda: mine.interrupts == ["finish"], GENEROUS_SECONDS, every=0.01)
    policy.pause("a", "abort", 600.0)
    assert until(lambda: mine.interrupts == ["finish", "abort"], GENEROUS_SECONDS, every=0.01)
    assert other.interrupts == []


def test_a_process_that_joins_sees_the_pause_before_its_first_call(
    policy: PolicyRegistry, gate: PolicyGate, call: Callable[..., Caller]
) -> None:
    epoch = policy.pause(None, "finish", 600.0)
    caller = call(gate)
    assert until(lambda: policy.heed(epoch, None).processes == 1, GENEROUS_SECONDS, every=0.01)
    assert not caller.entered.wait(0.3)
    policy.resume(None, None)
    gate.heard()
    assert caller.entered.wait(GENEROUS_SECONDS)


def test_a_pause_whose_message_was_lost_is_seen_by_the_next_look(
    policy: PolicyRegistry, gate: PolicyGate, call: Callable[..., Caller]
) -> None:
    gate.look()
    epoch = policy.pause(None, "finish", 600.0)
    gate.beat()
    assert policy.heed(epoch, None).complete
    assert not call(gate).entered.wait(0.3)


def test_what_is_believed_too_long_is_not_believed(
    policy: PolicyRegistry, gate: PolicyGate, call: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped for longer than others wait for it must not act on what it knew."""
    gate.look()
    policy.pause(None, "finish", 600.0)
    monkeypatch.setattr("tasks.gate.PROCESS_TTL_SECONDS", 0.0)
    assert not call(gate).entered.wait(0.3)


def test_a_pause_ends_by_itself_and_costs_the_stage_nothing(
    policy: PolicyRegistry, gate: PolicyGate, call: Callable[..., Caller]
) -> None:
    policy.pause(None, "finish", 2.0)
    caller = call(gate)
    assert caller.entered.wait(GENEROUS_SECONDS)
    caller.join()
    assert caller.clock.waited_seconds > 0.5


def test_a_held_job_can_be_cancelled(policy: PolicyRegistry, gate: PolicyGate, call: Callable[..., Caller]) -> None:
    epoch = policy.pause(None, "finish", 600.0)
    caller = call(gate)
    assert until(lambda: policy.heed(epoch, None).processes == 1, GENEROUS_SECONDS, every=0.01)
    caller.signal.set(Cancelled("enough"))
    caller.join()
    assert isinstance(caller.error, Cancelled)
    assert not caller.entered.is_set()


def test_nothing_is_called_while_nothing_is_known_and_not_for_ever(
    redis_settings: Settings, tmp_path: Any, call: Callable[..., Caller]
) -> None:
    away = redis_settings.with_(redis_url=f"unix://{tmp_path}/nobody.sock")
    caller = call(PolicyGate(PolicyRegistry(script_client(away), away), "n1 b rollout-0", 0.5))
    assert until(lambda: caller.error is not None, GENEROUS_SECONDS, every=0.01)
    assert isinstance(caller.error, StoreUnavailable)
    assert not caller.entered.is_set()


def test_a_process_that_stops_is_waited_for_no_more(policy: PolicyRegistry, gate: PolicyGate) -> None:
    gate.close()  # it never made a call
    gate.look()
    assert policy.heed(0, None).processes == 1
    gate.close()
    assert policy.heed(0, None).processes == 0


def test_held_jobs_are_told_with_the_heartbeat(
    policy: PolicyRegistry, gate: PolicyGate, call: Callable[..., Caller]
) -> None:
    policy.pause(None, "finish", 600.0)
    callers = [call(gate) for _ in range(5)]
    assert until(lambda: sum(gate._held.values()) == 5, GENEROUS_SECONDS, every=0.01)
    gate.beat()
    assert policy.heed(0, "a").held == 5
    policy.resume(None, None)
    gate.beat()
    assert all(caller.entered.wait(GENEROUS_SECONDS) for caller in callers)


def test_a_pinned_job_makes_no_call_with_other_weights(
    policy: PolicyRegistry, gate: PolicyGate, redis_client: redis.Redis, redis_settings: Settings
) -> None:
    gate.look()
    BackendRegistry(redis_client, redis_settings).change(A.url, policy_version=2)
    signal, deadlines, judged = JobSignal(), DeadlineThread(), []
    clock = StageClock(600.0, "rollout", signal, deadlines)
    # Its backend has the version by now, and the process does not know yet.
    with JobGate(gate, signal, clock, 2, lambda: judged.append(1)).call(A) as passage:
        assert passage.version == 2
    assert judged
    # It has another version: the watch says so.
    leaves = JobGate(gate, signal, clock, 1, lambda: signal.set(Cancelled("the backend has left version 1")))
    with pytest.raises(Cancelled, match="left version 1"), leaves.call(A):
        pytest.fail("a call with other weights")
    signal.close()
