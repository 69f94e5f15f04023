"""Images' folders that the sandbox user can reach, which pytest's are not; trees to make images of; the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from image_registry import Registry, tar_of
from small_root import make_borrowing_root, make_small_root

from prorl_celery.images.build import Builder
from prorl_celery.images.store import ImageStore
from prorl_celery.images.tool import Stop, Tool
from prorl_celery.sandbox.launch import sandbox_user
from prorl_celery.settings import Settings


@dataclass(frozen=True)
class Place:
    """A data directory of our own, and the command run with it."""

    data: Path

    @property
    def images(self) -> Path:
        return self.data / "images"

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}
        return kept | {"PRORL_DATA_DIR": str(self.data)}

    def argv(self, *arguments: str | Path) -> list[str]:
        return [str(Path(sys.executable).with_name("prorl")), "images", *map(str, arguments)]

    def run(self, *arguments: str | Path, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments), env=self.environ, capture_output=True, text=True, timeout=timeout, check=False
        )

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*arguments), env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def listing(self) -> list[str]:
        """The names in the images' folder, of images and manifests."""
        return sorted(path.name for path in self.images.iterdir() if not path.name.startswith("."))

    def left_overs(self) -> list[str]:
        """What is half-made."""
        return sorted(path.name for path in (self.images / ".work").iterdir())


@pytest.fixture
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="prorl-test-images-"))
    folder.chmod(0o755)
    yield Place(folder)
    shutil.rmtree(folder)


@pytest.fixture
def builder(place: Place) -> Iterator[Builder]:
    store = ImageStore(place.images, sandbox_user(Settings()))
    share, held = store.take("share")
    stop = Stop()
    with held:
        yield Builder(store=store, tool=Tool.find(store.user, share), logs=place.data / "logs", stop=stop)
    stop.close()


@pytest.fixture(scope="session")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a shell and a few programs of its own."""
    return make_small_root(tmp_path_factory.mktemp("roots") / "small")


@pytest.fixture(scope="session")
def borrowing_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree that has next to nothing."""
    return make_borrowing_root(tmp_path_factory.mktemp("roots") / "borrowing")


@pytest.fixture
def registry(borrowing_root: Path) -> Iterator[Callable[..., Registry]]:
    """Makes a registry that has images of these names, which all hold little but their own name."""
    started: list[Registry] = []

    def begin(*names: str) -> Registry:
        server = Registry().__enter__()
        started.append(server)
        note = borrowing_root / "opt" / "name"
        for name in names:
            note.write_text(name)
            server.add(name, tar_of(borrowing_root))
        note.unlink(missing_ok=True)
        return server

    yield begin
    for server in started:
        server.__exit__(None, None, None)
