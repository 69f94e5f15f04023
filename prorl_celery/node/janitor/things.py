"""What of ours is on this machine: processes, control groups, mounts, sockets, folders, and whether each is anybody's.

Everything is found by a label that it carries or by the lock that its owner holds (`sandbox.owner`, `folders`), and
only what belongs to this user: root does not look after others' services. Nothing here changes anything.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prorl_celery import folders
from prorl_celery.sandbox.cgroups.left import of_keepers
from prorl_celery.sandbox.owner import LABEL, VARIABLE, Owner, owner_in
from prorl_celery.settings import Settings

Kind = Literal["process", "group", "mount", "socket", "folder"]
Fate = Literal["lives", "left", "unknown"]

FATES: dict[str, Fate] = {"lives": "lives", "dead": "left", "unknown": "unknown"}
"""What becomes of an owner's things."""

YOUNG_SECONDS = 60.0
"""A service's directory this young may be one that is about to be locked."""

_INSTANCE = re.compile(rb"(?:Apptainer|Singularity) instance: [^\[]*\[(prorl-[^\]]*)\]")
"""What the process that holds an instance is called; its end is the instance's."""
_TITLE = re.compile(rb"\w+ instance: [^\[]*\[prorl-init-")
"""What Apptainer and Singularity call the process that holds an instance; the name is ours (`singularity.registry`)."""
_TITLE_VARIABLE = b"_WRAPPER_ARG0="
"""Where the first process of an instance has the title, too."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Thing:
    """Something of ours. `fate`: it has a living owner, is left over, or its owner cannot be seen from here."""

    kind: Kind
    name: str
    """A pid, or a path."""
    fate: Fate
    owner: Owner | None = None
    """The keeper that a process names."""
    session: int = 0
    """A process's session: each sandbox has one of its own."""


def inventory(settings: Settings) -> list[Thing]:
    """Everything of this user's, of all its services, in an order in which it can be removed."""
    files = list(_files(settings))
    mounts = _mounts([Path(f.name) for f in files if f.kind == "folder" and f.fate == "left"])
    groups = [Thing("group", str(path), FATES[owner.fate], owner) for path, owner in of_keepers()]
    return [*processes(), *groups, *mounts, *files]


def processes() -> Iterator[Thing]:
    """Sandboxes' processes that carry a label of this user's."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        owner = owner_of(int(entry.name))
        if owner is None or owner.uid != os.geteuid():
            continue
        try:
            session = os.getsid(int(entry.name))
        except ProcessLookupError:
            continue
        yield Thing("process", entry.name, FATES[owner.fate], owner, session)


def owner_of(pid: int) -> Owner | None:
    """The keeper whose label a process carries in its arguments, its title or its environment; None for others and for
    zombies.
    """
    arguments = _proc(pid, "cmdline").split(b"\0")
    # `bash -c SCRIPT LABEL`: not in any place, or whoever looks for a label by `pgrep` would be taken for a sandbox.
    for flag, _, name in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if flag == b"-c" and LABEL.fullmatch(name):
            return owner_in(name)
    instance = _INSTANCE.match(arguments[0])
    if instance is not None:
        return owner_in(instance[1])
    if _TITLE.match(arguments[0]):
        return owner_in(arguments[0])
    mark = f"{VARIABLE}=".encode()
    for variable in _proc(pid, "environ").split(b"\0"):
        if variable.startswith(mark) or _TITLE.match(variable.removeprefix(_TITLE_VARIABLE)):
            return owner_in(variable)
    return None


def run_dirs(settings: Settings) -> list[Path]:
    """Where this user's services keep their sockets: as set, and where services without that setting do."""
    found = {settings.run_dir.absolute(): None}
    for place in _temporary():
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
    for place in _temporary():
        yield from _made(place, seen)


def _made(place: Path, seen: set[Path]) -> Iterator[Thing]:
    for path in folders.made(place):
        if path not in seen:
            seen.add(path)
            yield Thing("folder", str(path), "lives" if folders.is_held(path) else "left")


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


def _temporary() -> list[Path]:
    return list(dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))))


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
