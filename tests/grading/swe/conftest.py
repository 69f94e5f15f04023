"""One keeper, and two sandboxes: an agent's, and one to grade in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pypi_grading import graded, pypi_index  # noqa: F401 - fixtures
from swe_repositories import Repository

from prorl_celery.sandbox.base import Sandbox, SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess


@pytest.fixture(scope="session")
def swe_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Sandbox]]:
    """Starts a sandbox."""
    with (
        KeeperProcess(Settings(run_dir=tmp_path_factory.mktemp("run"), node="n1")) as keeper,
        NeverCancelled() as never,
    ):
        yield lambda **spec: keeper.client.start(
            SandboxSpec(job_id="j", attempt=1, purpose="eval", **spec), cancel=never, timeout=60
        )


@pytest.fixture(scope="module")
def agents(swe_start: Callable[..., Sandbox]) -> Iterator[Repository]:
    """A repository in a sandbox that is an agent's."""
    sandbox = swe_start()
    yield Repository(sandbox)
    sandbox.stop()


@pytest.fixture(scope="module")
def graders(swe_start: Callable[..., Sandbox]) -> Iterator[Repository]:
    """The same repository in another sandbox."""
    sandbox = swe_start()
    yield Repository(sandbox)
    sandbox.stop()
