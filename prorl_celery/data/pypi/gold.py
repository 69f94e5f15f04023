"""The fix of an instance, for oracles and tests: what its gold files differ by between the two releases.

It is written to a folder of its own that no node reads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from prorl_celery.data.pypi.fetch import fetch
from prorl_celery.data.pypi.rows import PypiRow
from prorl_celery.data.pypi.unpack import unpack
from prorl_celery.errors import DatasetError

GIT_SECONDS = 120.0


def write_gold(row: PypiRow, base: Path, *, cache: Path, folder: Path) -> Path:
    """Write `folder`/ID.diff, a patch for `git apply` in the workspace; one that is there is kept.

    Raises: `DatasetError` for an instance that says no fixed version or no gold files, or where nothing differs.
    """
    target = folder / f"{row.instance_id}.diff"
    if target.is_file():
        return target
    about = f"{row.file} ({row.instance_id})"
    if row.fixed_version is None or not row.gold_files:
        field = "gold_files" if row.fixed_version else "fixed_version"
        raise DatasetError(f"{row.file}: {field}: is needed for the gold patch")
    archive, _ = fetch(row.package, row.fixed_version, row.archive, row.fixed_sha256, cache=cache, about=about)
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".gold-", dir=folder))
    try:
        unpack(archive, work / "fixed", strip=row.archive == "sdist")
        for name in row.gold_files:
            _copy(base / name, work / "a" / name)
            _copy(work / "fixed" / name, work / "b" / name)
        patch = _difference(work, about)
        if not patch:
            raise DatasetError(f"{row.file}: gold_files: are the same in both releases")
        (work / "patch").write_bytes(patch)
        (work / "patch").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() or source.is_file():
        shutil.copy2(source, target, follow_symlinks=False)


def _difference(work: Path, about: str) -> bytes:
    for side in ("a", "b"):
        (work / side).mkdir(exist_ok=True)
    settings = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(work), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.autocrlf=false", "-c", "core.attributesFile=/dev/null", "diff", "--no-index",
             "--binary", "--no-renames", "--no-prefix", "--no-color", "--no-ext-diff", "a", "b"],
            cwd=work, env={"PATH": os.environ.get("PATH", os.defpath), **settings}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatasetError(f"{about}: git cannot make the gold patch: {error}") from error
    if done.returncode not in (0, 1):
        raise DatasetError(f"{about}: git cannot make the gold patch: {done.stderr.decode('utf-8', 'replace')[-300:]}")
    return done.stdout
