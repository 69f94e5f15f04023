"""The skeleton image for tests, in a folder that the sandbox user can reach, which pytest's are not."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SKELETON = Path(__file__).parents[1] / "deploy" / "images" / "make_skeleton.sh"


@contextmanager
def skeleton() -> Iterator[str]:
    """Its path; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="prorl-test-image-") as folder:
        Path(folder).chmod(0o755)
        subprocess.run([SKELETON, f"{folder}/skeleton"], check=True, timeout=120)
        yield f"{folder}/skeleton"
