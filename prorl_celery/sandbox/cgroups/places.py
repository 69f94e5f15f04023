"""Where this process may make control groups, if anywhere. Looks only; changes nothing.

Groups are made below the group this process is in, never elsewhere: so whatever limits the service is under (a
container's, a job's, a unit's) hold for its sandboxes too.

cgroup v1: every controller is a tree of its own; a group below ours can be made where its folder is writable, which as
a rule only root's is.

cgroup v2: one tree. A group that holds processes cannot have controllers for groups below it, so the service's own
processes must move one down first; that is done only in a group that was given to us and in which all are ours.
systemd's `Delegate=yes` and a container with a writable cgroup tree give such a group.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

WANTED = ("memory", "pids", "cpu")
LEAF = "prorl-service"
"""Where the service's own processes go in a v2 group of ours."""


@dataclass(frozen=True, slots=True)
class Places:
    """For each controller that can be had, the group below which to make groups."""

    version: int
    folders: dict[str, Path]
    leaf: Path | None = None
    """Where all processes of the v2 group must be moved first."""


@dataclass(frozen=True, slots=True)
class Nowhere:
    """Why there is no place for groups."""

    why: str


def find(proc: Path = Path("/proc")) -> Places | Nowhere:
    """Where to make groups: v2 where it has a memory controller for us, else v1."""
    try:
        mounts = _mounts((proc / "self/mountinfo").read_text(encoding="utf-8", errors="replace"))
        groups = _own_groups((proc / "self/cgroup").read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return Nowhere(f"this kernel shows no control groups ({error.strerror or error})")
    second = _second(mounts, groups, proc)
    if isinstance(second, Places):
        return second
    first = _first(mounts, groups)
    if isinstance(first, Places):
        return first
    return first if "cgroup" in {mount.kind for mount in mounts} else second


def trees(proc: Path = Path("/proc")) -> list[Path]:
    """Where the trees in which keepers make groups are mounted."""
    try:
        mounts = _mounts((proc / "self/mountinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []
    return [Path(mount.point) for mount in mounts if mount.kind == "cgroup2" or mount.options & set(WANTED)]


@dataclass(frozen=True, slots=True)
class _Mount:
    kind: str
    root: str
    point: str
    options: frozenset[str]

    def folder(self, group: str) -> Path | None:
        """Where a group is seen under this mount; None when it is not part of it (a bind of another group)."""
        root = self.root.rstrip("/")
        if group != root and not group.startswith(root + "/"):
            return None
        return Path(self.point + group[len(root) :])


def _mounts(text: str) -> list[_Mount]:
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            found.append(_Mount(kind[0], _plain(fields[3]), _plain(fields[4]), frozenset(kind[2].split(","))))
    return found


def _plain(text: str) -> str:
    """mountinfo writes blanks and the like as octal escapes."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), text)


def _own_groups(text: str) -> dict[str, str]:
    """This process's group per controller; v2's under the empty name."""
    groups = {}
    for line in text.splitlines():
        _, controllers, group = line.split(":", 2)
        for name in controllers.split(","):
            groups[name] = group
    return groups


def _first(mounts: list[_Mount], groups: dict[str, str]) -> Places | Nowhere:
    folders = {}
    for name in WANTED:
        for mount in mounts:
            folder = (
                mount.folder(groups[name]) if mount.kind == "cgroup" and name in mount.options & set(groups) else None
            )
            if folder is not None and os.access(folder, os.W_OK):
                folders[name] = folder
    if "memory" not in folders:
        return Nowhere("the memory controller of cgroup v1 is not writable for this user")
    return Places(1, folders)


def _second(mounts: list[_Mount], groups: dict[str, str], proc: Path) -> Places | Nowhere:
    mount = next((mount for mount in mounts if mount.kind == "cgroup2"), None)
    own = mount.folder(groups[""]) if mount is not None and "" in groups else None
    if mount is None or own is None:
        return Nowhere("there is no cgroup tree here")
    why = "no memory controller was given to this service's cgroup"
    for base in _bases(own, Path(mount.point)):
        there = _words(base / "cgroup.controllers")
        if "memory" not in there:
            continue
        if not all(
            os.access(place, os.W_OK) for place in (base, base / "cgroup.subtree_control", base / "cgroup.procs")
        ):
            why = "this service's cgroup is not writable for this user"
            continue
        folders = {name: base for name in WANTED if name in there}
        inhabitants = {int(pid) for pid in _words(base / "cgroup.procs")}
        # The root of all groups may hold processes beside groups; it is the one without this file.
        if not inhabitants or not (base / "cgroup.events").exists():
            return Places(2, folders)
        if base == own and not _is_given(own, Path(mount.point)):
            why = "this service's cgroup is its manager's and was not delegated"
        elif base == own and _all_ours(inhabitants, proc):
            return Places(2, folders, leaf=base / LEAF)
        else:
            why = "processes that are not this service's live in its cgroup"
    return Nowhere(why)


def _bases(own: Path, top: Path) -> list[Path]:
    """The groups to try: the one above ours where ours is the leaf of one that was delegated; then ours."""
    bases = [own]
    if own != top and (own.name == LEAF or _is_delegated(own.parent)):
        bases.insert(0, own.parent)
    return bases


def _is_given(own: Path, top: Path) -> bool:
    """Whether the group is ours to divide. An ordinary user can write only to what he was given; root to everything, so
    there it takes a sign: that it is all we see of the tree (a container), or systemd's.
    """
    return os.geteuid() != 0 or own == top or _is_delegated(own)


def _is_delegated(folder: Path) -> bool:
    """systemd marks what it gives away (with `DelegateSubgroup=` the service's processes are one below)."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _all_ours(inhabitants: set[int], proc: Path) -> bool:
    """Whether a group's processes are this one's ancestors and what those started. 0 is a process we cannot see."""
    if 0 in inhabitants:
        return False
    oldest = os.getpid()
    while (parent := _parent(oldest, proc)) in inhabitants:
        oldest = parent
    return all(_descends(pid, oldest, proc) for pid in inhabitants)


def _descends(pid: int, oldest: int, proc: Path) -> bool:
    """Whether a process stems from another. One that has ended since it was listed is in nobody's way."""
    above: int | None = pid
    while above and above != oldest:
        above = _parent(above, proc)
    return above is None or above == oldest


def _parent(pid: int, proc: Path) -> int | None:
    try:
        return int(
            (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        )
    except OSError:
        return None


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text(encoding="ascii").split())
    except OSError:
        return set()
