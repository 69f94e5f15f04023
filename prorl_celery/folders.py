"""Folders that belong to a process while it lives, so that whoever finds one can tell whether it is still anybody's.

The sign is a lock on the folder. It ends with its process, however that ends, and with the machine. A folder made by
`make` is locked before it has its name, `prorl-WHAT-UID-...`: one so named without a lock is nobody's, however young.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import select
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

UNNAMED = ".prorl-new-"
"""What `make`'s folders are called for the moment before they are locked."""
UNNAMED_SECONDS = 60.0
ASK_AGAIN_SECONDS = 0.05


class OwnFolder:
    """A locked folder. `close` removes it with all that is in it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def close(self) -> None:
        """Idempotent; what cannot be removed is left to the janitor."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> OwnFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def temporary(what: str, *, mode: int = 0o700) -> OwnFolder:
    """`make` where temporary files go."""
    return make(Path(tempfile.gettempdir()), what, mode=mode)


def make(place: Path, what: str, *, mode: int = 0o700) -> OwnFolder:
    """A fresh folder in `place` that is ours until we close it or end; `what` is a word. Raises `OSError`."""
    path = Path(tempfile.mkdtemp(prefix=UNNAMED, dir=place))
    try:
        lock = take(path)
        if lock is None:
            raise BlockingIOError(f"{path} was locked as soon as it was made")
        path.chmod(mode)
        named = path.rename(place / f"prorl-{what}-{os.geteuid()}-{secrets.token_hex(4)}")
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return OwnFolder(named, lock)


def take(path: Path) -> int | None:
    """Lock a folder; the lock's descriptor, or None while another holds it. Raises `OSError` where there is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def hold(path: Path, patience: float) -> int | None:
    """Make a folder (0700) where there is none, and lock it; None when another holds it for all of `patience` seconds.

    Raises `OSError`. A janitor holds the lock for a moment while it looks, and may remove the folder.
    """
    deadline = time.monotonic() + patience
    while True:
        lock = _made_and_taken(path)
        if lock is not None:
            return lock
        if time.monotonic() > deadline:
            return None
        select.poll().poll(ASK_AGAIN_SECONDS * 1000)


def made(place: Path) -> Iterator[Path]:
    """The folders in `place` that processes of this user made by `make`; those without their name once it is too late
    for one.
    """
    form = re.compile(rf"prorl-[a-z]+-{os.geteuid()}-[0-9a-f]{{8}}")
    for path in own_folders(place):
        if form.fullmatch(path.name) or (path.name.startswith(UNNAMED) and age(path) > UNNAMED_SECONDS):
            yield path


def own_folders(place: Path) -> Iterator[Path]:
    """The folders of this user's in `place`, links left out; none where it cannot be read."""
    try:
        paths = list(place.iterdir())
    except OSError:
        return
    for path in paths:
        try:
            found = path.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            yield path


def is_held(path: Path) -> bool:
    """Whether a process holds a folder's lock; also where it cannot be told."""
    try:
        lock = take(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    if lock is not None:
        os.close(lock)
    return lock is None


def age(path: Path) -> float:
    """Seconds since anything was made or removed in a folder; 0 where it is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _made_and_taken(path: Path) -> int | None:
    """The lock, or None where another holds it or the folder was removed meanwhile."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take(path)
    except (FileExistsError, FileNotFoundError):
        if path.is_symlink() or path.is_file():
            raise
        return None
    if lock is not None and not _is_still(path, lock):
        os.close(lock)
        return None
    return lock


def _is_still(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(lock))
    except OSError:
        return False
