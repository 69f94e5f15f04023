"""What an instance's tests need beside the library: pytest and its extra requirements, as wheels for one Python.

A folder of wheels and of `site.tar.gz`, which is all of them installed, with byte code where this machine has that
Python: so that no sandbox has to compile pytest. The instance's own package is in none of them, of whatever version:
what the tests import must be the workspace.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from prorl_celery.data.pypi.fetch import normalised, pip, wheels
from prorl_celery.errors import DatasetError

SITE = "site.tar.gz"
MANIFEST = "wheelhouse.json"
PYTEST = "pytest>=7"
COMPILE_SECONDS = 300.0
SELDOM_USED = r"/pygments/(lexers|styles|formatters)/(?!__init__|_mapping|terminal)|/tests?/"
"""What is not compiled: pytest only ever colours Python."""
_making = threading.Lock()
FIXED_TIME = 315532800
"""1980: the oldest that a zip can say, and the same for all."""


def make_wheelhouse(
    requirements: Sequence[str],
    *,
    without: str,
    python: str,
    interpreter: Path | None,
    folder: Path,
    about: str,
    pytest: str = PYTEST,
) -> Path:
    """A wheelhouse in `folder` of pytest and these requirements for Python `python` ("3.11"), without the package
    `without`; one that is there is used again. `interpreter` is such a Python on this machine, to compile.

    Raises: `DatasetError`, `OSError`. Nothing half-made is left.
    """
    wanted = sorted({pytest, *requirements})
    said = json.dumps([wanted, python])
    key = f"py{python}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    common = folder / key
    with _making:  # the instances of a set mostly need the same
        if not (common / MANIFEST).is_file():
            _make(common, wanted, python, interpreter, about)
    own = normalised(without)
    if own not in _packages(common):
        return common
    place = folder / f"{key}-without-{own}"
    with _making:
        if not (place / MANIFEST).is_file():
            _make_without(place, common, own, wanted, python, interpreter, about)
    return place


def _make(place: Path, wanted: list[str], python: str, interpreter: Path | None, about: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".wheels-", dir=place.parent))
    try:
        new = work / "new"
        new.mkdir()
        wheels(wanted, python, target=new, about=f"{about}: extra_requirements")
        _finish(new, wanted, python, interpreter, about)
        _rename(new, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _make_without(
    place: Path, common: Path, own: str, wanted: list[str], python: str, interpreter: Path | None, about: str
) -> None:
    work = Path(tempfile.mkdtemp(prefix=".wheels-", dir=place.parent))
    try:
        new = work / "new"
        new.mkdir()
        for wheel in common.glob("*.whl"):
            if _package(wheel) != own:
                shutil.copyfile(wheel, new / wheel.name)
        if not any(_package(wheel) == "pytest" for wheel in new.glob("*.whl")):
            raise DatasetError(f"{about}: package: no tests can be run by pytest without {own}")
        _finish(new, wanted, python, interpreter, about)
        _rename(new, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _finish(folder: Path, wanted: list[str], python: str, interpreter: Path | None, about: str) -> None:
    """Install the wheels of a folder, without asking an index, pack that, and say what is in the folder."""
    site = folder.parent / "site"
    found = sorted(folder.glob("*.whl"))
    pip(
        "install", "--no-index", "--no-deps", "--no-compile", "--target", site, "--python-version", python,
        "--only-binary", ":all:", "--implementation", "cp", *(part for tag in _tags(python) for part in tag),
        *found, about=f"{about}: extra_requirements",
    )  # fmt: skip
    shutil.rmtree(site / "bin", ignore_errors=True)  # scripts for a Python of this machine
    if interpreter is not None:
        _compile(site, interpreter, about)
    with tarfile.open(folder / SITE, "w:gz", compresslevel=6) as tar:
        tar.add(site, arcname=".", filter=_plain)
    told = {"python": python, "requirements": wanted, "wheels": [wheel.name for wheel in found]}
    (folder / MANIFEST).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _tags(python: str) -> list[list[str]]:
    from prorl_celery.data.pypi.fetch import platforms

    tag = f"cp{python.replace('.', '')}"
    return [["--abi", tag], ["--abi", "abi3"], ["--abi", "none"], platforms()]


def _compile(site: Path, interpreter: Path, about: str) -> None:
    """Byte code that is taken as it is: the times of files do not survive every way into a sandbox."""
    try:
        done = subprocess.run(
            [interpreter, "-I", "-m", "compileall", "-q", "-x", SELDOM_USED, "--invalidation-mode", "unchecked-hash",
             "."],
            cwd=site, env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=COMPILE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatasetError(f"{about}: {interpreter} cannot compile what tests need: {error}") from error
    if done.returncode < 0 or not any(site.rglob("*.pyc")):  # a file of another Python's syntax is no harm
        raise DatasetError(f"{about}: {interpreter} cannot compile what tests need: {done.stderr[-300:]}")


def _plain(item: tarfile.TarInfo) -> tarfile.TarInfo:
    item.uid = item.gid = 0
    item.uname = item.gname = ""
    item.mtime = FIXED_TIME
    return item


def _rename(new: Path, place: Path) -> None:
    try:
        new.rename(place)
    except OSError:
        if not (place / MANIFEST).is_file():  # else another was quicker
            raise


def _packages(folder: Path) -> set[str]:
    return {_package(wheel) for wheel in folder.glob("*.whl")}


def _package(wheel: Path) -> str:
    return normalised(wheel.name.split("-", 1)[0])
