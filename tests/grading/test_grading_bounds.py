"""Work in a fork with limits: it says what it said, and how it ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grading.math_children import InChild, children

from prorl_celery.grading.bounds import Say, bounded


def _burn(say: Say) -> None:
    say("begun")
    10 ** (10**9)


def _fill(say: Say) -> None:
    say("begun")
    bytearray(1 << 30)


def _dive(say: Say) -> None:
    _dive(say)


def _raise(say: Say) -> None:
    say(1)
    raise ValueError("no")


def _killed(say: Say) -> None:
    say(1)
    os.kill(os.getpid(), signal.SIGKILL)


def _crash(say: Say) -> None:
    os.kill(os.getpid(), signal.SIGILL)


def _look(say: Say) -> None:
    say(sorted(os.environ))


def _talk(say: Say) -> None:
    while True:
        say("x" * 10_000)


def _twice(say: Say) -> None:
    say({"a": 1})
    say([2.5, None])


WORK: dict[str, Callable[[Say], None]] = {
    "twice": _twice, "burn": _burn, "fill": _fill, "dive": _dive, "raise": _raise, "killed": _killed, "crash": _crash,
    "look": _look, "talk": _talk,
}  # fmt: skip


def run(name: str) -> dict[str, Any]:
    signal.signal(signal.SIGILL, signal.SIG_DFL)
    begun = time.monotonic()
    ended = bounded(WORK[name], cpu_seconds=1, memory_bytes=256 << 20)
    return {"said": ended.said, "how": ended.how, "lost": ended.lost, "seconds": time.monotonic() - begun}


@pytest.fixture(scope="module")
def in_child() -> Iterator[InChild]:
    with children() as made:
        yield made


@pytest.mark.parametrize(
    ("name", "said", "how", "lost"),
    [
        ("twice", [{"a": 1}, [2.5, None]], None, False),
        ("burn", ["begun"], "it took more than 1 s of processor time", False),
        ("fill", ["begun"], "it took more than 256 MB of memory", False),
        ("dive", [], "it is nested too deeply", False),
        ("raise", [1], "it broke what reads it (exit code 103)", False),
        ("killed", [1], "it took more than 1 s of processor time", True),
        ("crash", [], "it broke what reads it (signal 4)", False),
        ("look", [[]], None, False),
    ],
)
def test_how_bounded_work_ends(in_child: InChild, name: str, said: list[Any], how: str | None, lost: bool) -> None:
    ended = in_child(run, name, timeout=60)
    assert (ended["said"], ended["how"], ended["lost"]) == (said, how, lost)


def test_what_says_too_much_is_ended(in_child: InChild) -> None:
    ended = in_child(run, "talk", timeout=60)
    assert ended["how"] is not None
    assert len(ended["said"]) < 110
