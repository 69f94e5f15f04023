"""Unpacking archives from a package index, which may hold anything: nothing is written outside of the target."""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from prorl_celery.errors import DatasetError

MOST_BYTES = 256 << 20
MOST_MEMBERS = 50_000
READ_BYTES = 1 << 20
LEFT_OUT = (".git", ".hg", ".svn", ".bzr", "__pycache__")
"""History and byte code, wherever they are in a release."""


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    executable: bool
    data: IO[bytes] | None
    """None for a link."""
    link: str = ""


def unpack(archive: Path, target: Path, *, strip: bool) -> None:
    """Unpack a tar, zip or wheel into a new folder; with `strip`, without the single top folder of a source release.

    Files, folders and links within are made, with the executable bit and no other. On failure nothing is left.
    Raises: `DatasetError` for an absolute path, `..`, a link that leads out, a device, more than `MOST_BYTES`, or what
    is no archive; `OSError`.
    """
    work = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
    try:
        raw = work / "raw"
        raw.mkdir()
        try:
            _write(_members(archive), raw, archive.name)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, KeyError) as error:
            raise DatasetError(f"{archive.name}: no archive that can be read: {error}") from error
        top = raw
        if strip:
            inside = list(raw.iterdir())
            if len(inside) != 1 or not inside[0].is_dir() or inside[0].is_symlink():
                raise DatasetError(f"{archive.name}: a source release must have a single top folder")
            top = inside[0]
        _check_links(top, archive.name)
        top.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _members(archive: Path) -> Iterator[_Member]:
    if archive.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                mode = info.external_attr >> 16
                kind = stat.S_IFMT(mode)
                if info.is_dir():
                    continue
                if kind == stat.S_IFLNK:
                    yield _Member(info.filename, False, None, file.read(info).decode("utf-8", "surrogateescape"))
                elif kind in (0, stat.S_IFREG):
                    with file.open(info) as data:
                        yield _Member(info.filename, bool(mode & 0o100), data)
                else:
                    raise DatasetError(f"{archive.name}: {info.filename} is no file, folder or link")
        return
    with tarfile.open(archive) as tar:
        for item in tar:
            if item.isdir():
                continue
            if item.issym():
                yield _Member(item.name, False, None, item.linkname)
            elif item.isreg() or item.islnk():
                contents = tar.extractfile(item)  # of a hard link, what it is a link to
                if contents is None:
                    raise DatasetError(f"{archive.name}: {item.name} has no contents")
                yield _Member(item.name, bool(item.mode & 0o100), contents)
            else:
                raise DatasetError(f"{archive.name}: {item.name} is no file, folder or link")


def _write(members: Iterator[_Member], target: Path, archive: str) -> None:
    left, count = MOST_BYTES, 0
    for member in members:
        count += 1
        if count > MOST_MEMBERS:
            raise DatasetError(f"{archive}: more than {MOST_MEMBERS} files")
        parts = member.name.split("/")
        if member.name.startswith("/") or ".." in parts or "\\" in member.name or "\0" in member.name:
            raise DatasetError(f"{archive}: an unsafe path: {member.name!r}")
        if set(parts) & set(LEFT_OUT):
            continue
        place = target.joinpath(*parts)
        for parent in reversed(place.parents[: len(parts) - 1]):
            if parent.is_symlink() or parent.is_file():
                raise DatasetError(f"{archive}: {member.name!r} lies beyond what is no folder")
            parent.mkdir(exist_ok=True)
        if place.is_symlink() or place.exists():
            raise DatasetError(f"{archive}: {member.name!r} is there twice")
        if member.data is None:
            place.symlink_to(member.link)
            continue
        with place.open("xb") as file:
            while block := member.data.read(READ_BYTES):
                left -= len(block)
                if left < 0:
                    raise DatasetError(f"{archive}: more than {MOST_BYTES} bytes unpacked")
                file.write(block)
        place.chmod(0o755 if member.executable else 0o644)


def _check_links(top: Path, archive: str) -> None:
    """Every link leads to somewhere below the top, by its text."""
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink():
                link = str(path.readlink())
                inside = posixpath.normpath(posixpath.join(path.relative_to(top).parent.as_posix(), link))
                if link.startswith("/") or inside == ".." or inside.startswith("../"):
                    raise DatasetError(f"{archive}: the link {path.relative_to(top)} leads out, to {link!r}")
