"""Files of the host that sandboxes may see, in a place that the sandbox user can reach.

Started as root, sandboxes run as another user, who often can read neither the environment this is installed in nor
the run directory. What they need is copied once to a directory that they can.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from prorl_celery import folders
from prorl_celery.errors import SandboxUnavailable
from prorl_celery.sandbox.launch import User
from prorl_celery.settings import Settings

COPIED_FROM_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "mime.types", "localtime")
ETC_FILES = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
    "hostname": "sandbox\n",
    "shells": "/bin/sh\n/bin/bash\n",
}


class Share:
    """A directory of one keeper for what its sandboxes may see, theirs while it lives (`prorl_celery.folders`).

    `close` removes it; what a killed keeper left the janitor removes.
    Raises: `SandboxUnavailable` when there is no place that the sandbox user can reach, `OSError`.
    """

    def __init__(self, settings: Settings, user: User | None) -> None:
        for place in places(settings):
            if reachable(place, user):
                break
        else:
            name = user.name if user else "the sandbox user"
            tried = ", ".join(map(str, places(settings)))
            raise SandboxUnavailable(f"{name} can reach none of {tried}: set PRORL_RUN_DIR or TMPDIR")
        self._folder = folders.make(place, "share", mode=0o755)
        self.path = self._folder.path

    def close(self) -> None:
        """Remove it."""
        self._folder.close()


def places(settings: Settings) -> tuple[Path, ...]:
    """Where such directories are made: the first that the sandbox user can reach."""
    return settings.run_dir / settings.node, Path(tempfile.gettempdir())


def reachable(path: Path, user: User | None) -> bool:
    """Whether the sandbox user can read a file, or enter a folder, by its path."""
    if user is None:
        return os.access(path, os.R_OK)
    path = path.absolute()
    try:
        if not all(_allows(parent.stat(), user, 0o1) for parent in path.parents):
            return False
        return _allows(path.stat(), user, 0o5 if path.is_dir() else 0o4)
    except OSError:
        return False


def _allows(found: os.stat_result, user: User, wanted: int) -> bool:
    if found.st_uid == user.uid:
        mode = found.st_mode >> 6
    elif found.st_gid == user.gid:
        mode = found.st_mode >> 3
    else:
        mode = found.st_mode
    return mode & wanted == wanted


def publish(source: Path, target: Path) -> None:
    """Copy a folder of files to where sandboxes see it, readable and executable for all."""
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (target, *target.rglob("*")):
        path.chmod(0o755)


def make_etc(target: Path) -> None:
    """A small /etc: who the agent is, where libraries and certificates are, and nothing about this machine."""
    target.mkdir(mode=0o755, exist_ok=True)
    for name, text in ETC_FILES.items():
        (target / name).write_text(text, encoding="ascii")
    for name in COPIED_FROM_ETC:
        source, copy = Path("/etc", name), target / name
        if source.is_dir() and not copy.exists():
            shutil.copytree(source, copy, symlinks=True)
        elif source.is_file():
            shutil.copyfile(source, copy)


def extra_python(user: User | None) -> str | None:
    """Where /usr has no python3: the folder of ours, if the sandbox user can reach it."""
    if Path("/usr/bin/python3").exists() or Path(sys.base_prefix) == Path("/usr"):
        return None
    return sys.base_prefix if reachable(Path(sys.base_prefix), user) else None
