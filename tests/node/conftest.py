"""A real keeper for each test that asks for one, or a supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_help import LIMIT
from skeletons import skeleton
from supervised_help import DEADLINE_S, Serve, Service

from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess


@pytest.fixture
def never() -> Iterator[NeverCancelled]:
    with NeverCancelled() as signal_that_never_comes:
        yield signal_that_never_comes


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    with skeleton() as path:
        yield path


@pytest.fixture
def keeper_settings(tmp_path: Path) -> Settings:
    return Settings(run_dir=tmp_path, node="n1", rollout_slots=LIMIT - 1, init_ahead=1, spare_sandboxes=0)


@pytest.fixture
def keeper(keeper_settings: Settings) -> Iterator[KeeperProcess]:
    with KeeperProcess(keeper_settings) as process:
        yield process


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    services: list[Service] = []

    def start(name: str, *, hangup: str = "default") -> Service:
        services.append(Service(name, tmp_path, hangup=hangup))
        return services[-1]

    yield start
    for service in services:
        service.process.kill()
        service.process.wait(DEADLINE_S)
        if service.process.stderr:
            service.process.stderr.close()
