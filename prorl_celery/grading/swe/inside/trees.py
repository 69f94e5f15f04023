"""Runs in an eval's sandbox: the trees that tests run in, and what of a patch does not get there.

Tests are run by files that a patch may have changed as well: settings of pytest, `conftest.py`, what Python loads by
itself, metadata that registers plugins, the folder of the tests. Those are the base's in every tree. A patch that
changes them loses that part and nothing else.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator, Sequence

SETTINGS = {
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml",
    "sitecustomize.py", "usercustomize.py",
}  # fmt: skip
ENDINGS = (".egg-info", ".dist-info", ".egg", ".egg-link", ".pth")
"""Of files and folders that name plugins, or places to load code from."""


def guarded(path: str, protected: Sequence[str]) -> bool:
    """Whether a file is the base's, whatever a patch says. `protected` are files and folders."""
    parts = path.split("/")
    if parts[-1] in SETTINGS or any(part.endswith(ENDINGS) for part in parts):
        return True
    return any(path == place or path.startswith(place + "/") for place in protected)


def test_places(test_file: str, source_root: str) -> list[str]:
    """The test file, and its folder where that is one of tests and not what holds the sources."""
    parts = test_file.split("/")
    places = [test_file]
    for depth in range(1, len(parts)):
        name = parts[depth - 1]
        folder = "/".join(parts[:depth])
        holds_sources = source_root == folder or source_root.startswith(folder + "/")
        if name.split("_")[0].split("-")[0] in ("test", "tests") and not holds_sources:
            places.append(folder)
            break
    return places


def files_below(top: str) -> Iterator[str]:
    """Every file and link below a folder, relative to it, but git's and byte code."""
    for folder, inner, names in os.walk(top):
        for name in list(inner):
            if name in (".git", "__pycache__"):
                inner.remove(name)
            elif os.path.islink(os.path.join(folder, name)):
                inner.remove(name)
                names.append(name)
        for name in names:
            if not name.endswith((".pyc", ".pyo")) and name != ".git":
                yield os.path.relpath(os.path.join(folder, name), top)


def make_tree(source: str, base: str, target: str, protected: Sequence[str]) -> list[str]:
    """Copy `source` to `target` with the guarded files of `base`; return the guarded files that differed."""
    os.mkdir(target)
    had: set[str] = set()
    dropped = []
    for path in files_below(source):
        if not guarded(path, protected):
            _copy(source, target, path)
            continue
        had.add(path)
        if not _same(os.path.join(source, path), os.path.join(base, path)):
            dropped.append(path)
    for path in files_below(base):
        if guarded(path, protected):
            _put(base, target, path)
            if path not in had:
                dropped.append(path)
    return sorted(dropped)


def put_test(target: str, path: str, data: bytes) -> None:
    """Write the hidden test file into a tree, in place of anything that is there."""
    place = _free(target, path)
    with open(place, "wb") as file:
        file.write(data)


def top_level_names(base: str, roots: Sequence[str]) -> list[str]:
    """What the base itself offers for import at some folders of it."""
    found = set()
    for root in roots:
        place = os.path.normpath(os.path.join(base, root))
        if not os.path.isdir(place):
            continue
        for name in os.listdir(place):
            inner = os.path.join(place, name)
            if name.endswith(".py"):
                found.add(name[:-3])
            elif os.path.isdir(inner) and any(n.endswith(".py") for n in os.listdir(inner)):
                found.add(name)
    return sorted(found)


def _same(one: str, other: str) -> bool:
    if os.path.islink(one) or os.path.islink(other):
        return os.path.islink(one) and os.path.islink(other) and os.readlink(one) == os.readlink(other)
    return os.path.isfile(one) and os.path.isfile(other) and filecmp.cmp(one, other, shallow=False)


def _copy(source: str, target: str, path: str) -> None:
    place = os.path.join(target, path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    shutil.copy2(os.path.join(source, path), place, follow_symlinks=False)


def _put(base: str, target: str, path: str) -> None:
    shutil.copy2(os.path.join(base, path), _free(target, path), follow_symlinks=False)


def _free(target: str, path: str) -> str:
    """The place of a file in a tree, its folders made, and no link or other thing in the way."""
    place = target
    parts = path.split("/")
    for part in parts[:-1]:
        place = os.path.join(place, part)
        if os.path.islink(place) or os.path.isfile(place):
            os.unlink(place)
        os.makedirs(place, exist_ok=True)
    place = os.path.join(place, parts[-1])
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    elif os.path.lexists(place):
        os.unlink(place)
    return place
