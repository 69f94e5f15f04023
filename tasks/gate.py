"""The gate of a process: holds its jobs' model calls while the policy is paused, and tells with which weights each is
made.

What the process believes of the policy is at most `PROCESS_TTL_SECONDS` old, which is how long those who pause wait for
one that is silent: it hears of changes on the channel `policy`, looks again with every heartbeat, and before a call
that finds it older. Whoever looks tells, in the same step, what the process obeys and has in flight.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from prorl_celery.errors import StoreUnavailable
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.gate import Passage
from prorl_celery.sandbox.base import CancelSignal
from prorl_celery.scheduling.policy import PROCESS_TTL_SECONDS, PolicyRegistry, PolicyState, Told, Weights
from tasks.clock import StageClock
from tasks.signals import Bell

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 5.0
"""A message is lost while the listener's connection is down; looking again at this pace makes that harmless."""


@dataclass(frozen=True, slots=True)
class _Belief:
    """What was told, and when that was asked for; pauses end by our own clock from then on."""

    state: PolicyState
    asked: float

    @property
    def stale(self) -> bool:
        return time.monotonic() >= self.asked + PROCESS_TTL_SECONDS

    def held_for(self, model: str) -> float:
        """Seconds for which jobs of this model are held; 0 or less: not at all."""
        left = [pause.seconds_left for pause in self.state.pauses if pause.holds(model)]
        return max(left, default=0.0) - (time.monotonic() - self.asked)


class PolicyGate:
    """One for a process. Thread-safe; starts no thread of its own."""

    def __init__(self, policy: PolicyRegistry, process: str, unknown_seconds: float) -> None:
        self._policy = policy
        self._process = process
        self._unknown_seconds = unknown_seconds
        self._bell = Bell()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._belief: _Belief | None = None
        self._in_flight: set[Passage] = set()
        self._held: Counter[str] = Counter()

    def look(self) -> None:
        """Hear how the policy stands, obey, and tell so. Raises `StoreUnavailable`."""
        with self._looking:
            self._look()

    def join(self) -> None:
        """The process is about to make calls: whoever pauses waits for it from now on."""
        self._try_to_look()

    def heard(self, _: str = "") -> None:
        """Something has changed, says the listener. A process that has made no call has nothing to obey."""
        if self._belief is not None:
            self._try_to_look()

    def _try_to_look(self) -> None:
        try:
            self.look()
        except StoreUnavailable as error:
            log.warning("the policy's state is out of reach: %s", error)

    def beat(self) -> None:
        """Look as the heartbeat does. Raises `StoreUnavailable`."""
        if self._belief is not None:
            self.look()

    def close(self) -> None:
        """The process makes no more calls. Raises `StoreUnavailable`."""
        if self._belief is not None:
            self._policy.leave(self._process)

    @contextmanager
    def call(self, endpoint: Endpoint, signal: CancelSignal, clock: StageClock) -> Iterator[Passage]:
        """Wait, with the clock standing still, until a call to this backend may be made; it is in flight within.

        Raises: what the signal raises, `StoreUnavailable` when the policy's state has been out of reach for too long.
        """
        passage = self._enter(endpoint)
        if passage is None:
            with clock.paused():
                passage = self._wait(endpoint, signal)
        try:
            yield passage
        finally:
            self._leave(passage)

    def _enter(self, endpoint: Endpoint) -> Passage | None:
        with self._lock:
            belief = self._belief
            if belief is None or belief.stale or belief.held_for(endpoint.model) > 0:
                return None
            weights = belief.state.weights.get(endpoint.url, Weights(endpoint.policy_version))
            passage = Passage(endpoint, weights.version, weights.cache_salt)
            self._in_flight.add(passage)
            return passage

    def _leave(self, passage: Passage) -> None:
        model = passage.endpoint.model
        with self._lock:
            self._in_flight.discard(passage)
            last = all(other.endpoint.model != model for other in self._in_flight)
            awaited = self._belief is not None and self._belief.held_for(model) > 0
        if last and awaited:
            self.heard()  # those who paused wait for nothing else

    def _wait(self, endpoint: Endpoint, signal: CancelSignal) -> Passage:
        known = time.monotonic()
        with self._bell.ear() as rung, self._holding(endpoint.model):
            poll = select.poll()
            poll.register(rung, select.POLLIN)
            poll.register(signal.fileno(), select.POLLIN)
            while True:
                asked = time.monotonic()
                if (passage := self._enter(endpoint)) is not None:
                    return passage
                belief = self._belief
                wait = 0.0 if belief is None or belief.stale else belief.held_for(endpoint.model)
                poll.poll(max(0.0, min(wait, LOOK_AGAIN_SECONDS)) * 1000)
                signal.raise_if_set()
                if _drain(rung):
                    continue
                try:
                    self._look_since(asked)
                    known = time.monotonic()
                except StoreUnavailable:
                    # Nothing is known of a pause: held as if there were one, for as long as one waits for a backend.
                    if time.monotonic() > known + self._unknown_seconds:
                        raise
                    poll.poll(1000)
                    signal.raise_if_set()

    @contextmanager
    def _holding(self, model: str) -> Iterator[None]:
        with self._lock:
            self._held[model] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[model] -= 1

    def _look_since(self, asked: float) -> None:
        """Look, unless another thread has done so since."""
        with self._looking:
            if self._belief is None or self._belief.asked < asked:
                self._look()

    def _look(self) -> None:
        while True:
            told = self._tells()
            asked = time.monotonic()
            state = self._policy.look(self._process, told)
            self._obey(_Belief(state, asked))
            if state.epoch == told.epoch:
                return

    def _tells(self) -> Told:
        with self._lock:
            return Told(
                epoch=-1 if self._belief is None else self._belief.state.epoch,
                in_flight=Counter(passage.endpoint.model for passage in self._in_flight),
                held={model: count for model, count in self._held.items() if count},
            )

    def _obey(self, belief: _Belief) -> None:
        """No call begins against it from here on; those in flight are told."""
        interrupts = []
        with self._lock:
            changed = self._belief is None or belief.state.epoch != self._belief.state.epoch
            self._belief = belief
            for passage in self._in_flight if changed else ():
                modes = {pause.mode for pause in belief.state.pauses if pause.holds(passage.endpoint.model)}
                if modes:
                    interrupts.append(partial(passage.interrupt, "abort" if "abort" in modes else "finish"))
        for interrupt in interrupts:
            interrupt()
        if changed:
            self._bell.ring()


def _drain(fd: int) -> bool:
    """Whether it had rung."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)
        return True
    return False


class JobGate:
    """A `Gate` for one job's conversation. `pinned` is the only version that will do for the job, None for any.

    `judge` sets the signal where the backend that the conversation is at will not do any more (`tasks/watch.py`).
    """

    def __init__(
        self,
        gate: PolicyGate,
        signal: CancelSignal,
        clock: StageClock,
        pinned: int | None,
        judge: Callable[[], None],
    ) -> None:
        self._gate = gate
        self._signal = signal
        self._clock = clock
        self._pinned = pinned
        self._judge = judge

    @contextmanager
    def call(self, endpoint: Endpoint) -> Iterator[Passage]:
        """Raises: as `PolicyGate.call`."""
        while True:
            with self._gate.call(endpoint, self._signal, self._clock) as passage:
                if self._pinned in (None, passage.version):
                    yield passage
                    return
            self._judge()
            self._signal.raise_if_set()
            self._gate.look()  # the backend's record has the version; it is what we believe that is too old
