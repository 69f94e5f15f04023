"""Runs in an eval's sandbox: the trees that tests run in, and what of a patch does not get there.

Tests are run by files that a patch may have changed as well: settings of pytest, `conftest.py`, what Python loads by
itself, metadata that registers plugins, the folder of the tests. Those are the base's in every tree. A patch that
changes them loses that part and nothing else.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from typing import Iterator, List, Sequence, Set

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


def test_places(test_file: str, source_root: str) -> List[str]:
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
            elif os.path.islink(os.path.join(folder, name)):  # noqa: PTH114, PTH118
                inner.remove(name)
                names.append(name)
        for name in names:
            if not name.endswith((".pyc", ".pyo")) and name != ".git":
                yield os.path.relpath(os.path.join(folder, name), top)  # noqa: PTH118


def make_tree(source: str, base: str, target: str, protected: Sequence[str]) -> List[str]:
    """Copy `source` to `target` with the guarded files of `base`; return the guarded files that differed."""
    os.mkdir(target)  # noqa: PTH102
    had: Set[str] = set()
    dropped = []
    for path in files_below(source):
        if not guarded(path, protected):
            _copy(source, target, path)
            continue
        had.add(path)
        if not _same(os.path.join(source, path), os.path.join(base, path)):  # noqa: PTH118
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
    with open(place, "wb") as file:  # noqa: PTH123
        file.write(data)


def top_level_names(base: str, roots: Sequence[str]) -> List[str]:
    """What the base itself offers for import at some folders of it."""
    found = set()
    for root in roots:
        place = os.path.normpath(os.path.join(base, root))  # noqa: PTH118
        if not os.path.isdir(place):  # noqa: PTH112
            continue
        for name in os.listdir(place):  # noqa: PTH208
            inner = os.path.join(place, name)  # noqa: PTH118
            if name.endswith(".py"):
                found.add(name[:-3])
            elif os.path.isdir(inner) and any(n.endswith(".py") for n in os.listdir(inner)):  # noqa: PTH112, PTH208
                found.add(name)
    return sorted(found)


def _same(one: str, other: str) -> bool:
    if os.path.islink(one) or os.path.islink(other):  # noqa: PTH114
        return os.path.islink(one) and os.path.islink(other) and os.readlink(one) == os.readlink(other)  # noqa: PTH114, PTH115
    return os.path.isfile(one) and os.path.isfile(other) and filecmp.cmp(one, other, shallow=False)  # noqa: PTH113


def _copy(source: str, target: str, path: str) -> None:
    place = os.path.join(target, path)  # noqa: PTH118
    os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
    shutil.copy2(os.path.join(source, path), place, follow_symlinks=False)  # noqa: PTH118


def _put(base: str, target: str, path: str) -> None:
    shutil.copy2(os.path.join(base, path), _free(target, path), follow_symlinks=False)  # noqa: PTH118


def _free(target: str, path: str) -> str:
    """The place of a file in a tree, its folders made, and no link or other thing in the way."""
    place = target
    parts = path.split("/")
    for part in parts[:-1]:
        place = os.path.join(place, part)  # noqa: PTH118
        if os.path.islink(place) or os.path.isfile(place):  # noqa: PTH113, PTH114
            os.unlink(place)  # noqa: PTH108
        os.makedirs(place, exist_ok=True)  # noqa: PTH103
    place = os.path.join(place, parts[-1])  # noqa: PTH118
    if os.path.isdir(place) and not os.path.islink(place):  # noqa: PTH112, PTH114
        shutil.rmtree(place)
    elif os.path.lexists(place):
        os.unlink(place)  # noqa: PTH108
    return place
