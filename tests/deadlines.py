"""Every test has a deadline: one that hangs fails where it hangs, tells what all threads were at, and is cleared away.

The default is far from what any test takes on a loaded machine; `slow` ones have more.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

SECONDS = 300
LONG_SECONDS = 3600
LONG = ("slow", "kinds", "vllm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("deadline", f"seconds for each of a test's phases; of {', '.join(LONG)} tests: {LONG_SECONDS}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[Any]:
    with _deadline(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    with _deadline(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[Any]:
    with _deadline(item, "teardown"):
        return (yield)


@contextmanager
def _deadline(item: pytest.Item, phase: str) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    long = any(item.get_closest_marker(name) for name in LONG)
    seconds = LONG_SECONDS if long else float(item.config.getini("deadline") or SECONDS)

    def over(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        pytest.fail(f"the {phase} of {item.nodeid} has not ended within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
