"""Folders as wholes: copied for an image, told apart by content, measured, removed."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from prorl_celery.errors import ImageError
from prorl_celery.sandbox.launch import User

BLOCK = 1 << 20
KEPT_BITS = 0o1777
"""Of a file's mode. No setuid or setgid: those of an image would be ones of this machine, too."""

Step = Callable[[], None]
"""Called between files; raises to stop."""


def _nothing() -> None:
    return None


def copy(source: Path, target: Path, *, step: Step = _nothing) -> None:
    """Copy a folder or a file into a new place: folders, files and links, hard ones too; no devices, sockets or pipes.

    Owners become this process's user; setuid and setgid bits go. Every folder can be entered by its owner.
    Raises: `ImageError` for what cannot be read, `OSError` for what cannot be written.
    """
    if not source.is_dir() or source.is_symlink():
        _copy_one(source, target)
        return
    target.mkdir()
    later: list[tuple[Path, int]] = [(target, source.stat().st_mode)]
    first: dict[tuple[int, int], Path] = {}
    for place, folders, files in _walk(source):
        here = target / place.relative_to(source)
        for name in folders:
            (here / name).mkdir()
            later.append((here / name, (place / name).lstat().st_mode))
        for name in files:
            step()
            found = (place / name).lstat()
            again = first.setdefault((found.st_dev, found.st_ino), here / name) if found.st_nlink > 1 else here / name
            if again != here / name and stat.S_ISREG(found.st_mode):
                (here / name).hardlink_to(again)
            else:
                _copy_one(place / name, here / name)
    for path, mode in reversed(later):
        path.chmod(mode & KEPT_BITS | 0o700)


def fill_in(source: Path, target: Path) -> None:
    """Copy of `source` what `target` lacks, by name; what is there stays as it is."""
    for entry in sorted(source.iterdir()):
        there = target / entry.name
        if entry.is_dir() and not entry.is_symlink() and there.is_dir() and not there.is_symlink():
            fill_in(entry, there)
        elif not os.path.lexists(there):
            copy(entry, there)


def digest(path: Path, *, step: Step = _nothing) -> str:
    """A hash of a file's content, or of a folder's names, modes, links and contents. Raises: `ImageError`."""
    if path.is_file() and not path.is_symlink():
        return _file_digest(path)
    total = hashlib.sha256()
    for place, folders, files in _walk(path):
        for name in sorted([*folders, *files]):
            step()
            entry = place / name
            mode = entry.lstat().st_mode
            content = _file_digest(entry) if stat.S_ISREG(mode) else ""
            if stat.S_ISLNK(mode):
                content = str(entry.readlink())
            line = (str(entry.relative_to(path)), f"{mode:o}", content)
            total.update(b"\0".join(os.fsencode(part) for part in line) + b"\n")
    return total.hexdigest()


def size(path: Path) -> int:
    """The bytes that a file or folder takes on disk."""
    total = path.lstat().st_blocks
    if path.is_dir() and not path.is_symlink():
        for place, folders, files in os.walk(path):
            for name in (*folders, *files):
                total += os.lstat(f"{place}/{name}").st_blocks
    return total * 512


def give(path: Path, user: User) -> None:
    """Make a tree, links and all, `user`'s. For root."""
    os.chown(path, user.uid, user.gid, follow_symlinks=False)
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.lchown(f"{place}/{name}", user.uid, user.gid)


def remove(path: Path) -> None:
    """Remove a file or a folder with all in it, though its folders may not be written to.

    Raises: `OSError` for what belongs to somebody else.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return

    def again(function: Callable[..., object], name: str, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError):
            return
        if not isinstance(error, PermissionError) or os.geteuid() == 0:
            raise error
        for place in (Path(name).parent, Path(name)):
            if place.is_dir() and not place.is_symlink():
                place.chmod(0o700)
        if Path(name).is_dir() and not Path(name).is_symlink():
            remove(Path(name))
        else:
            Path(name).unlink(missing_ok=True)

    _rmtree(path, again)


def _rmtree(path: Path, again: Callable[[Callable[..., object], str, BaseException], None]) -> None:
    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=again)
    else:
        shutil.rmtree(path, onerror=lambda function, name, error: again(function, name, error[1]))


def _walk(top: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk` in one order, links never followed. Raises: `ImageError` for a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise ImageError(f"cannot read {error.filename}: {error.strerror}") from error

    for place, folders, files in os.walk(top, onerror=refuse):
        folders.sort()
        links = [name for name in folders if os.path.islink(f"{place}/{name}")]  # noqa: PTH114
        folders[:] = [name for name in folders if name not in links]
        yield Path(place), folders, sorted([*files, *links])


def _copy_one(source: Path, target: Path) -> None:
    mode = source.lstat().st_mode
    if stat.S_ISLNK(mode):
        target.symlink_to(source.readlink())
    elif stat.S_ISREG(mode):
        try:
            reading = source.open("rb")
        except OSError as error:
            raise ImageError(f"cannot read {source}: {error.strerror}") from error
        with reading, target.open("xb") as writing:
            shutil.copyfileobj(reading, writing, BLOCK)
        target.chmod(mode & KEPT_BITS)


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ImageError(f"cannot read {path}: {error.strerror}") from error
