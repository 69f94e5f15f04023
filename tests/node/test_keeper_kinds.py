"""A kind is tried before its first sandbox: what becomes of whoever waits for that."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from prorl_celery.errors import SandboxError, SandboxUnavailable
from prorl_celery.node.keeper.kinds import Kinds
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.settings import Settings

KIND = "bubblewrap"


class Bench:
    """Kinds with a trial of the test's making."""

    def __init__(self, run_dir: Any) -> None:
        self.loop = Loop()
        self.kinds = Kinds(Settings(run_dir=run_dir, node="n1"), "boot", self.loop)
        self.told: dict[str, SandboxError | None] = {}

    def try_by(self, probe: Callable[[], None]) -> None:
        self.kinds._bubblewrap = SimpleNamespace(probe=probe)  # type: ignore[assignment]

    def ask(self, who: str) -> bool:
        def ready(error: SandboxError | None) -> None:
            self.told[who] = error
            self.loop.stop()

        return self.kinds.is_ready(KIND, who, ready)

    def until_told(self) -> None:
        late = self.loop.after(60.0, self.loop.stop)
        self.loop.resume()
        late.cancel()


@pytest.fixture
def bench(tmp_path: Any) -> Bench:
    return Bench(tmp_path)


def hang() -> None:
    time.sleep(600)


def test_who_comes_right_after_a_trial_was_given_up_gets_one_of_his_own(bench):
    bench.try_by(hang)
    assert not bench.ask("first")
    bench.kinds.gone(KIND, "first")
    bench.try_by(lambda: None)
    assert not bench.ask("second")
    bench.until_told()
    assert bench.told == {"second": None}
    assert bench.ask("third")


def test_a_trial_that_was_killed_says_nothing_of_the_kind(bench):
    bench.try_by(hang)
    bench.ask("first")
    (pid,) = bench.kinds.pids
    os.kill(pid, signal.SIGKILL)
    bench.until_told()
    assert isinstance(bench.told["first"], SandboxError)
    assert bench.told["first"].retryable
    bench.try_by(lambda: None)
    assert not bench.ask("second")
    bench.until_told()
    assert bench.told["second"] is None


def test_a_kind_that_does_not_work_is_not_tried_again(bench):
    def refuse() -> None:
        raise SandboxUnavailable("no namespaces")

    bench.try_by(refuse)
    bench.ask("first")
    bench.until_told()
    assert isinstance(bench.told["first"], SandboxUnavailable)
    with pytest.raises(SandboxUnavailable, match="no namespaces"):
        bench.ask("second")
