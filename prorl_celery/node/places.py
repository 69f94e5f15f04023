"""Directories and locks of a service: private ones, with one owner at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prorl_celery.errors import SettingsError

SHORT = 48
"""A directory for sockets has a path of at most this many bytes, since a socket's has at most 107."""


def directory(path: Path, mode: int = 0o777) -> Path:
    """Make `path`, where it is not there. Raises `SettingsError` that says why it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        raise SettingsError(f"cannot make the directory {path}: {error.strerror}") from error
    return path


def private_directory(path: Path) -> Path:
    """Make `path` and see that it is ours alone. Raises `SettingsError` where it cannot be made or somebody
    else could have laid it.
    """
    directory(path, 0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SettingsError(f"{path} is not a directory of this user's; remove it or set PRORL_RUN_DIR")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def run_dir_for(data_dir: Path) -> Path:
    """A short path for the sockets of the service whose data is in `data_dir`: services never share one."""
    digest = hashlib.sha256(bytes(data_dir.resolve())).hexdigest()[:10]
    base = Path(tempfile.gettempdir())
    if len(bytes(base)) > SHORT:
        base = Path("/tmp")
    return base / f"prorl-{os.getuid()}-{digest}"


@contextlib.contextmanager
def locked(path: Path, what: str, *, held: int | None = None) -> Iterator[int]:
    """Hold the lock file `path`, by the descriptor that it gives. Raises `SettingsError` saying that `what` is in use
    when another process holds it, or that it cannot be written to. `held`: this process holds it already by that one.

    Forked children hold it too: it is free once all of them are gone, which is when a second owner is safe.
    """
    if held is not None:
        try:
            yield held
        finally:
            os.close(held)
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"cannot write to {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise SettingsError(f"{what} is in use by another prorl (pid {owner or 'unknown'})") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)
