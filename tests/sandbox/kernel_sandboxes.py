"""Sandboxes with kernels for a module's tests: of both kinds, of one keeper, which publishes ipykernel alone."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prorl_celery.settings import Settings

SKELETON = Path(__file__).parents[2] / "deploy" / "images" / "make_skeleton.sh"
SECONDS = 60.0
"""For a cell that ends at once, on a machine with other things to do."""


def kernel_settings(run_dir: Path, **changes: object) -> Settings:
    """Settings of a keeper that is quick to its first kernel."""
    small = {"node": "n1", "rollout_slots": 12, "spare_sandboxes": 0, "kernel_packages": ("ipykernel",)}
    return Settings(run_dir=run_dir, **{**small, **changes})  # type: ignore[arg-type]


@contextmanager
def skeleton_image() -> Iterator[Path]:
    """An image without a /usr, in a folder that the sandbox user can reach, which pytest's are not."""
    folder = Path(tempfile.mkdtemp(prefix="prorl-test-kernel-image-"))
    folder.chmod(0o755)
    try:
        subprocess.run([SKELETON, folder / "skeleton"], check=True, timeout=120)
        yield folder / "skeleton"
    finally:
        shutil.rmtree(folder)
