"""Folders that belong to a process while it lives, so that whoever finds one can tell whether it is still anybody's.

The sign is a lock on the folder. It ends with its process, however that ends, and with the machine. A folder made by
`make` is locked before it has its name: one of that name without a lock is nobody's, however young.
"""

from __future__ import annotations

import fcntl
import os
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


def make(place: Path, prefix: str, *, mode: int = 0o700) -> OwnFolder:
    """A fresh folder `place/prefix...` that is ours until we close it or end. Raises `OSError`."""
    path = Path(tempfile.mkdtemp(prefix=UNNAMED, dir=place))
    try:
        lock = take(path)
        if lock is None:
            raise BlockingIOError(f"{path} was locked as soon as it was made")
        path.chmod(mode)
        named = path.rename(place / f"{prefix}{secrets.token_hex(4)}")
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
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take(path)
        if lock is not None:
            if _is_still(path, lock):
                return lock
            os.close(lock)  # removed while we waited
        elif time.monotonic() > deadline:
            return None
        else:
            select.poll().poll(ASK_AGAIN_SECONDS * 1000)


def belongs_to_nobody(path: Path) -> bool:
    """Whether a folder of this user's is there and no process holds it."""
    try:
        if not is_own(path):
            return False
        lock = take(path)
    except OSError:
        return False
    if lock is None:
        return False
    os.close(lock)
    return True


def is_own(path: Path) -> bool:
    """Whether a path is a folder of this user's itself, not a link to one. Raises `OSError` where there is nothing."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def unnamed(place: Path) -> Iterator[Path]:
    """Folders of this user's in `place` whose maker was killed before it could name them."""
    for path in place.glob(f"{UNNAMED}*"):
        try:
            if is_own(path) and time.time() - path.lstat().st_mtime > UNNAMED_SECONDS:
                yield path
        except OSError:
            continue


def _is_still(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(lock))
    except OSError:
        return False
