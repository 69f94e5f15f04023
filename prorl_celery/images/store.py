"""The folder that images are in: each a folder or a `.sif` file, with a manifest beside it that is written last.

    NAME, NAME.sif              an image, complete and checked, or not there
    NAME.json, NAME.sif.json    its manifest: what it was made from, and how; an image without one may be started from,
                                but is made anew by whoever would make it
    .work/NAME                  where it is being made, on the same file system
    .locks/NAME                 held by whoever makes or removes it; ends with the process

Making one: `claim`, build in the claim's folder, `install`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from prorl_celery.errors import DiskFull, ImageError
from prorl_celery.images import trees
from prorl_celery.images.names import SIF
from prorl_celery.images.tool import Stop
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.share import reachable

CLAIM_SECONDS = 4 * 3600.0
"""Longest wait for another that makes the same image: more than a build may take."""
LOOK_SECONDS = 0.2
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an image is and was made from."""

    name: str
    """As asked for; of a pulled image the registry's."""
    source: str
    """The definition, the folder or the registry's image that it was made from."""
    mode: str
    """The cache mode it was made under: scratch, versioned or locked; or pulled."""
    keys: dict[str, str] = field(default_factory=dict)
    """By cache mode, what must agree for it to be used again."""
    inputs: dict[str, str] = field(default_factory=dict)
    """SHA-256 of all that went in, by what it is."""
    built_at: str
    """UTC, ISO 8601."""
    tool: str
    """The program and its version."""
    prorl: str
    """This project's version."""
    bytes: int

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """None where there is none that can be read."""
        try:
            found = json.loads(path.read_bytes())
            return cls(**found)
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to make one image, and an empty folder for it that goes when the claim ends."""

    store: ImageStore
    target: Path
    work: Path
    """Ours, where nobody else writes; `temporary` in it is the builder's."""

    @property
    def temporary(self) -> Path:
        return self.work / "build"

    def install(self, built: Path, manifest: Manifest) -> None:
        """Put what was built in its place, in one step, and its manifest beside it."""
        record = manifest_of(self.target)
        record.unlink(missing_ok=True)
        _put(built, self.target)
        fresh = self.work / "manifest.json"
        fresh.write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
        fresh.replace(record)
        other = self.target.with_name(self.target.name.removesuffix(SIF))
        other = other if other != self.target else self.target.with_name(self.target.name + SIF)
        if os.path.lexists(other):  # of the two forms of one name, the newer is meant
            manifest_of(other).unlink(missing_ok=True)
            other.rename(self.work / "other")


class ImageStore:
    """Images in `folder`, made by this process's user, or as root by `user`."""

    def __init__(self, folder: Path, user: User | None) -> None:
        self.folder = folder
        self.user = user
        with _plainly(folder):
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o755)
            for place in (folder / ".work", folder / ".locks"):
                place.mkdir(exist_ok=True)
            (folder / ".work").chmod(0o755)
        if not reachable(folder, user):
            raise ImageError(
                f"{user.name if user else 'this user'}, whom sandboxes run as, cannot reach {folder}: open the folders "
                "above it (chmod a+x), or keep images elsewhere (PRORL_IMAGES_DIR)"
            )

    @contextlib.contextmanager
    def claim(self, file: str, *, stop: Stop) -> Iterator[Claim]:
        """Be the one that makes or removes the image in `file`; wait while another is.

        What a killed one left half-made is removed.
        Raises: `ImageError` after `CLAIM_SECONDS`, and for what the disk refuses; `DiskFull`; `Stopping`.
        """
        name = file.removesuffix(SIF)
        with self._locked(name, stop), _plainly(self.folder):
            work = self._fresh(name)
            claim = Claim(self, self.folder / file, work)
            claim.temporary.mkdir()
            self._give(claim.temporary)
            try:
                yield claim
            finally:
                with contextlib.suppress(OSError):  # the next claim tries again
                    trees.remove(work)

    def take(self, prefix: str) -> tuple[Path, contextlib.ExitStack]:
        """The first free folder of `PREFIX-0`, `PREFIX-1` and so on, the builder's; leaving the stack removes it."""
        number = 0
        while True:
            name = f".{prefix}-{number}"
            stack = contextlib.ExitStack()
            if stack.enter_context(self._try_lock(name)):
                break
            stack.close()
            number += 1
        with _plainly(self.folder):
            place = self._fresh(name)
            self._give(place)
        stack.callback(trees.remove, place)
        return place, stack

    def _fresh(self, name: str) -> Path:
        place = self.folder / ".work" / name
        trees.remove(place)
        place.mkdir()
        place.chmod(0o755)
        return place

    def _give(self, place: Path) -> None:
        if self.user is not None:
            os.chown(place, self.user.uid, self.user.gid)

    def room(self, needed: int, what: str) -> None:
        """Raises: `DiskFull` when there is less than `needed` bytes on the images' disk."""
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise DiskFull(
                f"{what} needs {needed / 1e9:.1f} GB, and {self.folder} has {free / 1e9:.1f} GB free: make room "
                "(`prorl images rm`), or keep images elsewhere (PRORL_IMAGES_DIR)"
            )

    def images(self) -> Iterator[Path]:
        """All images, by name."""
        for path in sorted(self.folder.iterdir()):
            if not path.name.startswith(".") and (path.is_dir() or path.name.endswith(SIF)):
                yield path

    def remove(self, file: str, *, stop: Stop) -> None:
        """Remove an image and its manifest. Raises: `ImageError` where there is none."""
        with self.claim(file, stop=stop) as claim:
            if not os.path.lexists(claim.target):
                raise ImageError(f"there is no image {claim.target}")
            manifest_of(claim.target).unlink(missing_ok=True)
            claim.target.rename(claim.work / "removed")

    @contextlib.contextmanager
    def _locked(self, name: str, stop: Stop) -> Iterator[None]:
        deadline = time.monotonic() + CLAIM_SECONDS
        while True:
            with self._try_lock(name) as ours:
                if ours:
                    yield
                    return
            if time.monotonic() > deadline:
                raise ImageError(f"another process has been making {name} for {CLAIM_SECONDS / 3600:g} hours")
            stop.wait(LOOK_SECONDS)  # a lock has no event to wait for beside a time and a stop

    @contextlib.contextmanager
    def _try_lock(self, name: str) -> Iterator[bool]:
        with _plainly(self.folder):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.folder / ".locks" / name, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except BlockingIOError:
            ours = False
        try:
            yield ours
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _plainly(folder: Path) -> Iterator[None]:
    """An error of the operating system as one of ours. Raises: `DiskFull`, `ImageError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"the disk of {folder} is full") from error
        raise ImageError(f"{error.filename or folder}: {error.strerror or error}") from error


def manifest_of(image: Path) -> Path:
    """Where an image's manifest is."""
    return image.with_name(image.name + ".json")


def _put(built: Path, target: Path) -> None:
    """Rename `built` to `target`; what was there takes `built`'s name, so that no moment has neither."""
    if not os.path.lexists(target) or built.is_file():
        built.replace(target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(built), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE) == 0:
        return
    failed = ctypes.get_errno()
    if failed not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(failed, os.strerror(failed), str(target))
    target.rename(built.with_name(built.name + ".old"))  # a file system that cannot exchange: NFS
    built.rename(target)
