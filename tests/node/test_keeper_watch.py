"""A keeper that says nothing for too long is ended, and nobody else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from prorl_celery.node.keeper_watch import KeeperWatch


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_one_that_is_silent_for_too_long_is_killed_once(sleeper: subprocess.Popen[bytes]) -> None:
    watch = KeeperWatch(0.0)
    watch.heard(sleeper.pid)
    assert watch.missed()
    assert sleeper.wait(10) == -9
    assert not watch.missed()


def test_one_that_answered_lately_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    watch = KeeperWatch(600.0)
    watch.heard(sleeper.pid)
    assert not watch.missed()
    assert sleeper.poll() is None
    watch.close()


def test_one_that_was_never_heard_is_nobody() -> None:
    assert not KeeperWatch(0.0).missed()
