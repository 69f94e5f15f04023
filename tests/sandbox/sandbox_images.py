"""Images for tests, in folders that every user can reach, which pytest's are not."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
from small_root import make_small_root

from prorl_celery.sandbox import singularity

needs_singularity = pytest.mark.skipif(
    singularity.command() is None,
    reason="no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it on Debian 12)",
)
BUILD_SECONDS = 120


def make_small(image: Path) -> str:
    """One with a /usr of its own: a shell, a few programs, /opt/data/file, and variables set by the image."""
    tree = make_small_root(image.with_suffix(".tree"))
    (tree / "opt/data").mkdir()
    (tree / "opt/data/file").write_text("of the image\n")
    build(image, tree, "--sandbox")
    shutil.rmtree(tree)
    with (image / ".singularity.d/env/90-environment.sh").open("a") as file:
        file.write("\nexport PATH=/opt/image/bin:$PATH\nexport OF_THE_IMAGE=yes\n")
    return str(image)


def build(image: Path, source: Path, *options: str) -> str:
    """Have the program build it."""
    program = singularity.command() or ""
    subprocess.run([program, "-q", "build", "--force", *options, image, source], check=True, timeout=BUILD_SECONDS)
    image.chmod(0o755)
    return str(image)


def give_to(path: Path, name: str) -> None:
    """Make a tree a user's."""
    entry = pwd.getpwnam(name)
    for found in (path, *path.rglob("*")):
        os.chown(found, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
