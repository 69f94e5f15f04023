"""What the tests of the keeper share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prorl_celery.node.janitor.thing import Thing
from prorl_celery.node.janitor.things import inventory
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.cgroups.places import trees
from prorl_celery.testing.keeper import KeeperProcess

LIMIT = 4
"""Places for rollout sandboxes on the node of `keeper_settings`."""


def spec(job_id: str = "job", **changes: object) -> SandboxSpec:
    return SandboxSpec(**{"job_id": job_id, "attempt": 1, **changes})  # type: ignore[arg-type]


def eventually(check: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def marked_processes(mark: str) -> list[int]:
    """Processes on this machine that have a mark in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def share_of(keeper: KeeperProcess) -> Path:
    """The folder in which a keeper keeps what its sandboxes see; it holds it locked."""
    links = set()
    for entry in Path(f"/proc/{keeper.process.pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            links.add(entry.readlink())
    (path,) = {link for link in links if link.name.startswith("prorl-share-")}
    return path


def things_of(keeper: KeeperProcess, share: Path | None = None) -> list[Thing]:
    """What a keeper has on this machine, or has left: its sandboxes' processes, its socket, its share."""
    place = f"{keeper.settings.run_dir}/"
    return [
        thing
        for thing in inventory(keeper.settings)
        if (thing.owner is not None and thing.owner.pid == keeper.process.pid)
        or thing.name.startswith(place)
        or thing.name == str(share)
    ]


def groups_of(keeper: KeeperProcess) -> list[Path]:
    """The control groups of a keeper's sandboxes."""
    name = f"prorl-keeper-{keeper.process.pid}-*/*/"
    return [path for tree in trees() for path in tree.rglob(name)]


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def states_of_children(pid: int) -> str:
    """The state letter of each child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    states = ""
    for child in children:
        with suppress(OSError):  # reaped meanwhile
            states += Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
    return states


def guard_of(keeper: KeeperProcess) -> int | None:
    """The process that cleans up behind a keeper that is killed."""
    pid = keeper.process.pid
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        if Path(f"/proc/{child}/comm").read_text() == "prorl-guard\n":
            return child
    return None
