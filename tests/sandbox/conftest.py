"""A real keeper per module, real sandboxes per test, and a cancel signal that tests can set."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jails import COMBINATIONS, Jail, Parts, make_parts
from jails import jail as make_jail
from set_cancel import SetCancel

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox import shell
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess


@pytest.fixture(autouse=True)
def _less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps after a time-out in a third of the time."""
    monkeypatch.setattr(shell, "FORCE", (("", 0.7), ("interrupt", 0.5), ("restart", 0.7), ("killall", 10.0)))


@pytest.fixture
def cancel() -> Iterator[SetCancel]:
    signal = SetCancel()
    yield signal
    signal.close()


@pytest.fixture(scope="session")
def jail_parts() -> Iterator[Parts]:
    """In a folder that everyone can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="prorl-test-jails-") as folder:
        Path(folder).chmod(0o755)
        yield make_parts(Path(folder))


@pytest.fixture(scope="session", params=COMBINATIONS)
def jail(request: pytest.FixtureRequest, jail_parts: Parts) -> Iterator[Jail]:
    """Each kind of sandbox, of a keeper that root runs and of one that an ordinary user runs."""
    with make_jail(request.param, jail_parts) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    run_dir: Path = tmp_path_factory.mktemp("run")
    return Settings(run_dir=run_dir, node="n1", rollout_slots=12, init_ahead=4)


@pytest.fixture(scope="module")
def keeper(sandbox_settings: Settings) -> Iterator[KeeperProcess]:
    with KeeperProcess(sandbox_settings, extra_env={"HOST_SECRET": "do-not-tell"}) as process:
        yield process


@pytest.fixture
def start(keeper: KeeperProcess, cancel: SetCancel) -> Iterator[Callable[..., LiveSandbox]]:
    """Starts sandboxes and stops them after the test."""
    started: list[LiveSandbox] = []

    def begin(**changes: object) -> LiveSandbox:
        spec = SandboxSpec(**{"job_id": "job", "attempt": 1, **changes})  # type: ignore[arg-type]
        started.append(keeper.client.start(spec, cancel=cancel, timeout=30.0))
        return started[-1]

    yield begin
    for sandbox in started:
        sandbox.close()
        try:
            keeper.client.stop(sandbox.handle.sandbox_id)
        except SandboxError:
            assert keeper.process.poll() is not None


@pytest.fixture
def sandbox(start: Callable[..., LiveSandbox]) -> LiveSandbox:
    return start()
