"""`ctx.in_child` for tests of graders: the real nursery without a stage around it, or a fork of the test itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prorl_celery.grading.bounds import bounded
from prorl_celery.sandbox.waiting import NeverCancelled
from tasks.nursery import Nursery

InChild = Callable[..., Any]


@contextmanager
def children() -> Iterator[InChild]:
    nursery = Nursery()
    try:
        with NeverCancelled() as never:

            def in_child(function: Callable[[Any], Any], argument: Any, *, timeout: float) -> Any:
                return nursery.call(function, argument, timeout=timeout, cancel=never)

            yield in_child
    finally:
        nursery.close()


def forked(function: Callable[[Any], Any], argument: Any, *, timeout: float) -> Any:
    """In a fork of this process, which has imported already what a nursery would import first, for seconds."""
    ended = bounded(lambda say: say(function(argument)), cpu_seconds=int(timeout), memory_bytes=8 << 30)
    assert ended.how is None, ended.how
    return ended.said[0]


def no_child(function: Callable[[Any], Any], argument: Any, *, timeout: float) -> Any:
    raise AssertionError(f"{function.__qualname__} was to run in a child")
