"""Waiting a moment in a process that has nothing to be woken by."""

from __future__ import annotations

import select
import time
from collections.abc import Callable


def pause(seconds: float) -> None:
    """Let `seconds` pass; a signal's handler may raise out of it."""
    select.poll().poll(max(0.0, seconds) * 1000.0)


def until(true: Callable[[], bool], timeout: float, *, every: float) -> bool:
    """Ask `true` now and every `every` seconds: for what gives no event. False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() >= deadline:
            return False
        pause(every)
    return True
