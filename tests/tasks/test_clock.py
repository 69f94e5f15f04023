"""A stage's clock counts work and nothing else, and its deadline fires while it runs."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from prorl_celery.errors import Cancelled, StageTimeout
from tasks.clock import DeadlineThread, StageClock
from tasks.signals import Bell, JobSignal


@pytest.fixture
def deadlines() -> Iterator[DeadlineThread]:
    thread = DeadlineThread()
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def signal() -> Iterator[JobSignal]:
    made = JobSignal()
    yield made
    made.close()


def readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def test_a_stage_that_overruns_is_told_with_its_name(deadlines: DeadlineThread, signal: JobSignal) -> None:
    clock = StageClock(0.1, "rollout", signal, deadlines)
    clock.start()
    assert readable(signal.fileno(), 10)
    with pytest.raises(StageTimeout, match=r"rollout did not end within its 0\.1 s"):
        signal.raise_if_set()


def test_a_wait_is_charged_to_no_stage(deadlines: DeadlineThread, signal: JobSignal) -> None:
    clock = StageClock(0.3, "rollout", signal, deadlines)
    clock.start()
    with clock.paused():
        assert not readable(signal.fileno(), 0.6)
    assert clock.worked_seconds < 0.3
    assert clock.waited_seconds >= 0.6
    assert readable(signal.fileno(), 10), "the deadline goes on after the wait"


def test_a_clock_that_was_stopped_fires_no_more(deadlines: DeadlineThread, signal: JobSignal) -> None:
    clock = StageClock(0.2, "eval", signal, deadlines)
    clock.start()
    clock.stop()
    assert not readable(signal.fileno(), 0.5)
    assert clock.remaining_seconds > 0


def test_many_deadlines_fire_in_their_order(deadlines: DeadlineThread) -> None:
    signals = [JobSignal() for _ in range(50)]
    for number, signal in enumerate(reversed(signals)):
        StageClock(0.05 + 0.005 * number, "init", signal, deadlines).start()
    assert all(readable(signal.fileno(), 10) for signal in signals)
    for signal in signals:
        signal.close()


def test_forgotten_deadlines_do_not_pile_up(deadlines: DeadlineThread, signal: JobSignal) -> None:
    for _ in range(1000):
        clock = StageClock(3600.0, "init", signal, deadlines)
        clock.start()
        clock.stop()
    assert len(deadlines._heap) < 100


def test_the_first_reason_stays(signal: JobSignal) -> None:
    signal.set(Cancelled("first"))
    signal.set(StageTimeout("second"))
    with pytest.raises(Cancelled, match="first"):
        signal.raise_if_set()
    assert readable(signal.fileno(), 0)


def test_a_signal_that_comes_after_the_end_is_harmless() -> None:
    signal = JobSignal()
    signal.close()
    signal.set(Cancelled("too late"))
    assert not signal.is_set


def test_a_bell_wakes_all_who_listen_and_none_who_left() -> None:
    bell = Bell()
    with bell.ear() as one, bell.ear() as two:
        bell.ring()
        assert readable(one, 0)
        assert readable(two, 0)
    started = time.monotonic()
    bell.ring()
    assert time.monotonic() - started < 5
