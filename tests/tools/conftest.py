"""One real sandbox for all tool tests, and a toolbox on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.search.index import LocalIndex
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess
from prorl_celery.tools.toolbox import TOOL_NAMES, Toolbox


@pytest.fixture(scope="session")
def tool_keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeeperProcess]:
    settings = Settings(run_dir=tmp_path_factory.mktemp("run"), node="n1", kernel_packages=("ipykernel",))
    with KeeperProcess(settings) as keeper:
        yield keeper


@pytest.fixture(scope="session")
def tool_sandbox(tool_keeper: KeeperProcess) -> Iterator[tuple[LiveSandbox, Settings]]:
    spec = SandboxSpec(job_id="tools", attempt=1, kernel=True)
    with NeverCancelled() as never:
        sandbox = tool_keeper.client.start(spec, cancel=never, timeout=30.0)
        yield sandbox, tool_keeper.settings
        sandbox.stop()


@pytest.fixture
def toolbox(tool_sandbox: tuple[LiveSandbox, Settings]) -> Iterator[Toolbox]:
    sandbox, settings = tool_sandbox
    sandbox.shell.run("cd /workspace && rm -rf ./* ./.??*", timeout=10.0)
    with NeverCancelled() as never:
        index = LocalIndex([{"title": "Tides", "url": "http://x/tides", "text": "The moon raises the tides."}])
        yield Toolbox(TOOL_NAMES, sandbox=sandbox, settings=settings, cancel=never, search=index)


@pytest.fixture
def call(toolbox: Toolbox) -> Callable[..., str]:
    return lambda name, **arguments: toolbox.call(name, arguments).content


@pytest.fixture
def edit(call: Callable[..., str]) -> Callable[..., str]:
    """The editor on /workspace/file.txt, unless told otherwise."""
    return lambda command, **arguments: call(
        "str_replace_editor", **{"command": command, "path": "/workspace/file.txt", **arguments}
    )
