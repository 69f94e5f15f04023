"""Asking a reward server as a stage does: from a thread, by the model loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from set_cancel import SetCancel

from prorl_celery.llm.loop import ModelLoop
from prorl_celery.rewards import remote
from prorl_celery.rewards.answer import Score
from prorl_celery.rewards.servers import RewardServers

Ask = Callable[..., Score]


@pytest.fixture
def cancel() -> Iterator[SetCancel]:
    signal = SetCancel()
    yield signal
    signal.close()


@pytest.fixture
def servers() -> RewardServers:
    return RewardServers()


@pytest.fixture
def loop() -> Iterator[ModelLoop]:
    model_loop = ModelLoop()
    yield model_loop
    model_loop.stop()


@pytest.fixture
def ask(loop: ModelLoop, servers: RewardServers, cancel: SetCancel) -> Ask:
    def asking(url: str, *, seconds: float = 10.0, call_seconds: float = 5.0) -> Score:
        body = remote.body_of("my answer", {"answer": 7}, "math")
        return loop.call(
            lambda: remote.score(loop.session, servers, url, body, seconds=seconds, call_seconds=call_seconds),
            cancel=cancel,
            timeout=60.0,
        )

    return asking
