"""What of ours is on this machine, each with whether it is still anybody's: processes, mounts, control groups,
sockets, folders, and what a bridge knows of sandboxes.

Everything is found by a label that it carries or by the lock that its owner holds (`sandbox.owner`, `folders`), and
only what belongs to this user: root does not look after others' services. Nothing here changes anything.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from prorl_celery import folders
from prorl_celery.node.janitor.processes import processes
from prorl_celery.node.janitor.thing import FATES, Thing
from prorl_celery.sandbox.cgroups.left import of_keepers
from prorl_celery.sandbox.owner import owner_in
from prorl_celery.sandbox.singularity import bridge
from prorl_celery.settings import Settings

YOUNG_SECONDS = 60.0
"""A service's directory this young may be one that is about to be locked."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def inventory(settings: Settings) -> list[Thing]:
    """Everything of this user's, of all its services, in an order in which it can be removed."""
    files = list(_files(settings))
    left = [Path(file.name) for file in files if file.kind == "folder" and file.fate == "left"]
    return [*processes(), *_groups(), *_networks(), *_mounts(left), *files]


def run_dirs(settings: Settings) -> list[Path]:
    """Where this user's services keep their sockets: as set, and where services without that setting do."""
    found = {settings.run_dir.absolute(): None}
    for place in temporary():
        form = re.compile(rf"prorl-{os.geteuid()}(-[0-9a-f]{{10}})?")
        found.update(dict.fromkeys(path for path in folders.own_folders(place) if form.fullmatch(path.name)))
    return list(found)


def answers(path: Path) -> bool:
    """Whether anything listens at a Unix socket; also where that cannot be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # of another type, or with a full queue: there is somebody
            return True
    return True


def mounts_below(path: Path) -> list[str]:
    """Mount points in a folder and the folder itself where it is one, the innermost first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), line.split(" ")[4])
        if point == str(path) or point.startswith(f"{path}/"):
            found.append(point)
    return found[::-1]


def _groups() -> Iterator[Thing]:
    for folder, owner in of_keepers():
        yield Thing("group", str(folder), FATES[owner.fate], owner)


def _networks() -> Iterator[Thing]:
    for name in bridge.noted():
        owner = owner_in(name.encode())
        if owner is not None and owner.uid == os.geteuid():
            yield Thing("network", name, FATES[owner.fate], owner)


def _files(settings: Settings) -> Iterator[Thing]:
    """Sockets before the folders that they are in."""
    seen: set[Path] = set()
    for run_dir in run_dirs(settings):
        own = list(folders.own_folders(run_dir))
        # A folder that keepers made is no node's.
        made = set(folders.made(run_dir))
        for place in [*(path for path in own if path not in made), run_dir]:
            yield from _made(place, seen)
            yield from _sockets(place)
        if run_dir != settings.run_dir.absolute() and _is_nobodys(run_dir):
            yield Thing("folder", str(run_dir), "left")
    for place in temporary():
        yield from _made(place, seen)


def _made(place: Path, seen: set[Path]) -> Iterator[Thing]:
    for path in folders.made(place):
        if path not in seen:
            seen.add(path)
            lives = folders.is_held(path) or _has_service(path)
            yield Thing("folder", str(path), "lives" if lives else "left")


def _has_service(data_dir: Path) -> bool:
    """Whether a service runs whose data is in a folder: of a benchmark that was killed before it."""
    try:
        with (data_dir / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _sockets(place: Path) -> Iterator[Thing]:
    try:
        paths = [path for path in place.iterdir() if stat.S_ISSOCK(path.lstat().st_mode)]
    except OSError:
        return
    for path in paths:
        yield Thing("socket", str(path), "lives" if folders.is_held(place) or answers(path) else "left")


def _is_nobodys(run_dir: Path) -> bool:
    """Whether a service's directory is one that no service uses."""
    if len(run_dir.name.split("-")) < 3 or folders.is_held(run_dir) or folders.age(run_dir) < YOUNG_SECONDS:
        return False
    inside = [run_dir, *folders.own_folders(run_dir)]
    if any(folders.is_held(path) for path in inside):
        return False
    return not any(thing.fate == "lives" for place in inside for thing in _sockets(place))


def _mounts(left: Iterable[Path]) -> Iterator[Thing]:
    for path in left:
        yield from (Thing("mount", point, "left") for point in mounts_below(path))


def temporary() -> list[Path]:
    return list(dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))))
