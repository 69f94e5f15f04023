"""The Python packages that kernels use where no image brings them: ours, but only those that are named.

The host's Python seldom has ipykernel, the environment that this runs in has, and sandboxes may see nothing else of
that. So the named packages and what they require are published in a folder of their own: every file a hard link where
that can be, else a copy. Both keep a file's time, by which Python knows that the bytecode beside it is still true.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from prorl_celery.errors import SandboxUnavailable

LEFT_OUT = frozenset({"debugpy", "jedi", "parso"})
"""Required by ipykernel for a debugger and completion, which no agent has; it does without them. A third of its start
and of its memory."""

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM_PYTHON = Path("/usr/bin", f"python{VERSION}")
NO_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "idlelib", "turtledemo", "ensurepip"})
"""Folders of a Python's library that kernels do not get: packages that are not named, and what nobody would miss."""
PACKAGES = "packages"
PYTHON = "python"
"""Folders of a keeper's share."""
SEEN_AT = "/opt/packages"
"""Where a sandbox has the packages."""


@dataclass(frozen=True, slots=True)
class KernelPython:
    """What kernels run on where the host's /usr is seen. `folders` are ours and where they are seen inside."""

    program: str
    packages: str
    folders: tuple[tuple[Path, str], ...]


def kernel_python(share: Path) -> KernelPython:
    """As `publish` made it in `share`. The host's own Python is preferred: an agent's shell has the same."""
    folders = [(share / PACKAGES, SEEN_AT)]
    base = Path(sys.base_prefix)
    if SYSTEM_PYTHON.exists() and Path("/usr/lib", f"python{VERSION}", "asyncio").is_dir():
        program = SYSTEM_PYTHON
    else:
        program = base / "bin" / f"python{VERSION}"
        if not base.is_relative_to("/usr"):
            folders.append((share / PYTHON, str(base)))
    return KernelPython(str(program), SEEN_AT, tuple(folders))


def are_published(share: Path) -> bool:
    """Whether `publish` has done its work in this folder."""
    return all(folder.exists() for folder, _ in kernel_python(share).folders)


def publish(names: Iterable[str], share: Path) -> None:
    """Make in `share` what kernels need: the packages of these names and all that they require, and our Python where
    the host's /usr has none of its version. Names that are not installed are left out.

    Raises: `SandboxUnavailable` when ipykernel is among those, `OSError`.
    """
    python = kernel_python(share)
    for folder, _ in python.folders:
        if folder.exists():
            continue
        unfinished = folder.with_name(folder.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        if folder.name == PACKAGES:
            _place_packages(names, unfinished, python.program)
        else:
            _place_python(unfinished)
        unfinished.rename(folder)


def _place_packages(names: Iterable[str], target: Path, python: str) -> None:
    found = closure(names)
    if "ipykernel" not in found:
        raise SandboxUnavailable("kernels need ipykernel: install it, and name it in PRORL_KERNEL_PACKAGES")
    placer = _Placer(target)
    for distribution in found.values():
        for source, place in _files(distribution):
            placer.place(source, place)
    (target / "bin").mkdir(mode=0o755, exist_ok=True)
    for name in ("python", "python3"):
        (target / "bin" / name).symlink_to(python)
    # Compiled here once, or in every kernel: nobody can write there.
    compileall.compile_dir(target, quiet=2)


def _place_python(target: Path) -> None:
    """The Python that this runs on, without packages."""
    base = Path(sys.base_prefix)
    placer = _Placer(target)
    program = base / "bin" / f"python{VERSION}"
    placer.place(program.resolve(), str(program.relative_to(base)))
    for source in (base / "lib").glob("*.so*"):
        placer.place(source.resolve(), str(source.relative_to(base)))
    for folder, folders, files in os.walk(base / "lib" / f"python{VERSION}"):
        folders[:] = [name for name in folders if name not in NO_LIBRARY]
        for name in files:
            placer.place(Path(folder, name), str(Path(folder, name).relative_to(base)))


def closure(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The installed distributions of these names, with all that they require here, by normal name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or name in LEFT_OUT:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = distribution
        for line in distribution.requires or ():
            # What is for another Python or another system is not installed here, but what is an extra may be.
            required, _, marker = line.partition(";")
            if re.search(r"\bextra\b", marker) is None:
                waiting += re.findall(r"^[\w.-]+", required)
    return found


class _Placer:
    """Puts files into a new folder, making the folders in between."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: set[str] = set()

    def place(self, source: Path, place: str) -> None:
        """A file of ours at a place in the folder, for all to read. Raises `OSError`."""
        folder, _, _ = place.rpartition("/")
        target = f"{self._root}/{place}"
        if folder not in self._made:
            (self._root / folder).mkdir(mode=0o755, parents=True, exist_ok=True)
            self._made.add(folder)
        with suppress(FileExistsError):
            if source.stat().st_mode & 0o004:
                try:
                    os.link(source, target)
                except FileExistsError:
                    raise
                except OSError:  # another file system, somebody else's file, too many links
                    shutil.copy2(source, target)
            else:
                shutil.copy2(source, target)
                Path(target).chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _files(distribution: metadata.Distribution) -> Iterator[tuple[Path, str]]:
    """A distribution's files, and their places in a folder of packages; with bytecode that its record does not name."""
    for file in distribution.files or ():
        name = str(file)
        if name.startswith(("..", "/")):  # programs and pages of manuals
            continue
        source = Path(str(distribution.locate_file(file)))
        if not source.is_file():
            continue
        yield source, name
        if name.endswith(".py"):
            compiled = Path(importlib.util.cache_from_source(str(source)))
            if compiled.is_file():
                yield compiled, str(Path(name).parent / "__pycache__" / compiled.name)
