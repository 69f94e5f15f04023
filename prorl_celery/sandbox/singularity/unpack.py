"""An image file where it cannot be mounted: unpacked once by a keeper, and used as a folder from then on.

An ordinary user mounts a SIF through FUSE, which needs /dev/fuse open to all and a squashfuse that knows `-o uid=`:
Apptainer brings one, Debian 12's does not and leaves all files to a root that the agent is not. Where one of them is
missing the program would unpack the file for every instance anew, for seconds each, and leave the folder behind when
the instance is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.singularity.program import Program
from prorl_celery.sandbox.singularity.registry import Registry

FUSE = Path("/dev/fuse")
MOUNTERS = ("squashfuse_ll", "squashfuse")
TAIL = 600


def can_mount(program: Program) -> bool:
    """Whether the calling process, the sandbox user's, can have image files mounted, with all in them its own."""
    own = [Path(program.path).parents[1] / "libexec" / program.product.partition("-")[0] / "bin"]
    path = os.pathsep.join([*map(str, own), os.environ.get("PATH", "")])
    found = next(filter(None, (shutil.which(name, path=path) for name in MOUNTERS)), None)
    if found is None or not os.access(FUSE, os.R_OK | os.W_OK):
        return False
    try:
        asked = subprocess.run([found, "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"uid=" in asked.stdout + asked.stderr


def as_folder(image: Path, registry: Registry, program: Program) -> Path:
    """The folder into which an image file is unpacked, now or before. Blocks, until another who unpacks it is done.

    It stays for the keeper's other sandboxes and goes with its registry. Raises: `SandboxError`.
    """
    try:
        found = image.stat()
        key = f"{image.resolve()} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
        place = registry.path / "unpacked"
        place.mkdir(mode=0o700, exist_ok=True)
        target = place / hashlib.sha256(key.encode()).hexdigest()[:20]
        # Its holder's end frees it; the caller has a time-out.
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _unpack(image, target, program)
    except OSError as error:
        raise SandboxError(f"the image {image} could not be unpacked: {error}. {_cure(image)}") from error
    return target


def _unpack(image: Path, target: Path, program: Program) -> None:
    part = target.with_suffix(".part")
    _remove(part)
    done = subprocess.run(
        [program.path, "-q", "build", "--force", "--fix-perms", "--sandbox", str(part), str(image)],
        env={**os.environ, "APPTAINER_TMPDIR": str(target.parent), "SINGULARITY_TMPDIR": str(target.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[-TAIL:]
        _remove(part)
        raise SandboxError(f"the image {image} could not be unpacked: {said}. {_cure(image)}")
    part.rename(target)


def _remove(folder: Path) -> None:
    if folder.exists():
        for path in (folder, *folder.rglob("*")):
            if stat.S_ISDIR(path.lstat().st_mode):
                path.chmod(0o700)
        shutil.rmtree(folder)


def _cure(image: Path) -> str:
    return (
        f"Image files are mounted where /dev/fuse is open to all (`chmod 666 /dev/fuse`) and squashfuse knows "
        f"`-o uid=`; or unpack it once, by `singularity build --sandbox FOLDER {image}`, and name the folder"
    )
