"""A real keeper for each test that asks for one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_help import LIMIT

from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

SKELETON = Path(__file__).parents[2] / "deploy" / "images" / "make_skeleton.sh"


@pytest.fixture
def never() -> Iterator[NeverCancelled]:
    with NeverCancelled() as signal_that_never_comes:
        yield signal_that_never_comes


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """A skeleton image, in a folder that the sandbox user can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="prorl-test-image-") as folder:
        Path(folder).chmod(0o755)
        subprocess.run([SKELETON, f"{folder}/skeleton"], check=True, timeout=60)
        yield f"{folder}/skeleton"


@pytest.fixture
def keeper_settings(tmp_path: Path) -> Settings:
    return Settings(run_dir=tmp_path, node="n1", rollout_slots=LIMIT - 1, init_ahead=1, spare_sandboxes=0)


@pytest.fixture
def keeper(keeper_settings: Settings) -> Iterator[KeeperProcess]:
    with KeeperProcess(keeper_settings) as process:
        yield process
