"""What an instance names on its node: the folder of the workspace, and the wheelhouse with what its tests need.

An instance comes from a trainer, so what it names is taken only from folders that the node's owner has given for it
(`PRORL_DATASETS`), each path followed through all its links first. A relative path is looked for below each of them.
"""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from pathlib import Path

from prorl_celery.errors import BadInstance
from prorl_celery.settings import Settings

SITE = "site.tar.gz"
MOST_BYTES = 256 << 20
MOST_FILES = 50_000
LEFT_OUT = frozenset((".git", ".hg", ".svn", ".bzr", "__pycache__"))


def roots_of(settings: Settings) -> tuple[Path, ...]:
    """The folders from which this node takes what instances name, without links."""
    given = [Path(text) for text in settings.datasets] or [settings.data_dir / "datasets"]
    return tuple(path.resolve() for path in given)


def find(named: str, field: str, roots: tuple[Path, ...]) -> Path:
    """The folder that an instance names. Raises: `BadInstance` for one that is not there, or not allowed here."""
    path = Path(named)
    if "\0" in named or ".." in path.parts:
        raise BadInstance(f"{field!r} is no plain path: {named!r}", field=field)
    candidates = [path] if path.is_absolute() else [root / path for root in roots]
    allowed = [found for found in map(_real, candidates) if any(found.is_relative_to(root) for root in roots)]
    if not allowed:
        raise BadInstance(
            f"{field!r}: {named} is not below a folder that this node takes data sets from (PRORL_DATASETS)",
            field=field,
        )
    for found in allowed:
        if found.is_dir():
            return found
    raise BadInstance(f"{field!r}: there is no folder {named} on this node", field=field)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def workspace_tar(folder: Path) -> bytes:
    """A folder's files, without any history and byte code, as a tar.

    Raises: `BadInstance` for a link that leads out of it, what is no file, folder or link, and what is too large.
    """
    out = io.BytesIO()
    left, count = MOST_BYTES, 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(folder):
            name = path.relative_to(folder).as_posix()
            item = tar.gettarinfo(path, arcname=name)
            if item is None or not (item.isreg() or item.issym() or item.islnk() or item.isdir()):
                raise BadInstance(f"the workspace's {name} is no file, folder or link", field="workspace")
            if item.issym():
                _check_link(name, item.linkname)
            count += 1
            left -= item.size
            if left < 0 or count > MOST_FILES:
                raise BadInstance(f"the workspace is over {MOST_BYTES} bytes or {MOST_FILES} files", field="workspace")
            _make_plain(item, path)
            if item.isreg():
                with path.open("rb") as file:
                    tar.addfile(item, file)
            else:
                tar.addfile(item)
    return out.getvalue()


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        linked = [name for name in folders if Path(place, name).is_symlink()]
        found += [Path(place, name) for name in sorted((*names, *linked)) if name not in LEFT_OUT]
        found += [Path(place, name) for name in folders if name not in linked]
    return found


def _check_link(name: str, link: str) -> None:
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
    if link.startswith("/") or inside == ".." or inside.startswith("../"):
        raise BadInstance(f"the workspace's link {name} leads out of it, to {link}", field="workspace")


def _make_plain(item: tarfile.TarInfo, path: Path) -> None:
    if item.islnk():  # a second name of a file: a file by itself
        item.type, item.linkname, item.size = tarfile.REGTYPE, "", path.stat().st_size
    item.mode = 0o755 if item.isdir() or item.mode & 0o100 else 0o644
    item.uid = item.gid = 0
    item.uname = item.gname = ""
    item.mtime = 315532800  # 1980: the same for all


def site_archive(folder: Path) -> bytes:
    """A wheelhouse's installed packages, a `.tar.gz`. Raises: `BadInstance` where it has none."""
    try:
        data = (folder / SITE).read_bytes()
    except OSError as error:
        raise BadInstance(
            f"the wheelhouse has no {SITE} that can be read: {error.strerror}", field="wheelhouse"
        ) from error
    if len(data) > MOST_BYTES:
        raise BadInstance(f"the wheelhouse's {SITE} is over {MOST_BYTES} bytes", field="wheelhouse")
    return data
