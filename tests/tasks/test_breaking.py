"""A handler's own Python code is broken off, and nothing else is."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from tasks.breaking import Breakable, BrokenOff
from tasks.signals import JobSignal


class Slot:
    """A thread that runs a handler's code."""

    def __init__(self, code: Callable[[], object]) -> None:
        self.handler = Breakable()
        self.began = threading.Event()
        self.raised: BaseException | None = None
        self.after = 0
        self._code = code
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.began.wait(30)

    def _run(self) -> None:
        try:
            with self.handler.running():
                self.began.set()
                self._code()
        except BaseException as error:  # noqa: BLE001 - what was raised is what is asked
            self.raised = error
        for _ in range(100_000):  # whatever comes too late would come here
            self.after += 1


def broken_off(slot: Slot) -> bool:
    """Break it off, in as many tries as it takes to find it in its own code, and wait for its end."""
    deadline = time.monotonic() + 30
    while not slot.handler.break_off():
        assert time.monotonic() < deadline
    slot.thread.join(30)
    return isinstance(slot.raised, BrokenOff)


def spin() -> None:
    while True:
        pass


def test_an_endless_loop_ends() -> None:
    slot = Slot(spin)
    assert broken_off(slot)
    assert slot.after == 100_000


def test_code_that_swallows_every_exception_is_struck_once_and_no_more() -> None:
    struck, stop = [], threading.Event()

    def deaf() -> None:
        while not stop.is_set():
            try:
                spin()
            except BrokenOff as error:
                struck.append(error)
                stop.wait(0.5)

    slot = Slot(deaf)
    deadline = time.monotonic() + 30
    while not struck and time.monotonic() < deadline:
        slot.handler.break_off()
    stop.set()
    for _ in range(1000):
        slot.handler.break_off()
    slot.thread.join(30)
    assert len(struck) == 1
    assert slot.raised is None
    assert slot.after == 100_000


def test_a_wait_of_ours_is_left_alone() -> None:
    signal = JobSignal()
    slot = Slot(lambda: signal.wait(2.0))
    poll = select.poll()
    poll.register(os.pidfd_open(os.getpid()), select.POLLIN)
    for _ in range(10):
        assert not slot.handler.break_off() or not slot.thread.is_alive()
        poll.poll(20)
    slot.thread.join(30)
    signal.close()
    assert slot.raised is None


def test_nothing_strikes_a_thread_that_has_left_the_handlers_code() -> None:
    for _ in range(50):
        slot = Slot(lambda: sum(range(3000)))
        slot.handler.break_off()
        slot.thread.join(30)
        assert slot.after == 100_000, "struck in code that is not the handler's"
