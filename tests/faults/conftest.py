"""Services that are hurt. Each module has one of its own, since a unit that dies often is started again ever later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_service import eventually
from fault_service import WITHIN_S, FaultService, hurt_service

from prorl_celery.testing import ScriptedBackend

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedBackend]:
    """A scripted backend that does what a job's task says; it takes a third of a second a call, and records them."""
    with ScriptedBackend(policy="obey", latency=0.3, record=4000) as backend:
        yield backend


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory, backend: ScriptedBackend) -> Iterator[FaultService]:
    """The module's service."""
    with hurt_service(tmp_path_factory.mktemp("hurt")) as service:
        service.add_backend(backend)
        yield service


@pytest.fixture
def service(hurt: FaultService) -> Iterator[FaultService]:
    """The module's service, whole before a test; after it nothing is left of the test's jobs, and all adds up."""
    assert eventually(hurt.is_whole, WITHIN_S), hurt.logs()
    hurt.clear_away()  # what a test that failed has left
    yield hurt
    hurt.assert_sound()
