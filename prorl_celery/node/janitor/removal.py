"""Removes what is left over, and says what went and what would not.

Given things of `things.inventory`; only those that are `left` are touched, and each is looked at again before it is: a
pid may be another process by now, a folder may have an owner. Two janitors at once do no harm.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prorl_celery import folders
from prorl_celery.errors import SandboxError
from prorl_celery.node.janitor.processes import owner_of
from prorl_celery.node.janitor.thing import Thing
from prorl_celery.node.janitor.things import answers, inventory, mounts_below
from prorl_celery.node.pause import until
from prorl_celery.sandbox.cgroups.groups import end_with_subgroups
from prorl_celery.sandbox.singularity import bridge
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

DEATH_SECONDS = 3.0
"""How long processes may take to be gone once they are killed."""
END_AGAIN_SECONDS = 0.05
MNT_DETACH = 2

Outcome = Literal["removed", "failed"]


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of a thing; `why` where it would not go."""

    thing: Thing
    outcome: Outcome
    why: str = ""


def clear_left(settings: Settings, *, deadline: float | None = None) -> list[Removal]:
    """One round over everything that dead keepers and services of this user left on this machine."""
    removals = remove(inventory(settings), deadline=deadline)
    report(removals)
    return removals


def report(removals: Iterable[Removal]) -> None:
    """Log what became of each."""
    for removal in removals:
        if removal.outcome == "failed":
            log.error("%s %s is left over and would not go: %s", removal.thing.kind, removal.thing.name, removal.why)
        else:
            log.warning("removed the %s %s, which was left over", removal.thing.kind, removal.thing.name)


def sandboxes_among(removals: Iterable[Removal]) -> int:
    """How many sandboxes the processes that were found belong to."""
    return len({(r.thing.owner, r.thing.sandbox) for r in removals if r.thing.sandbox})


def remove(
    things: Iterable[Thing],
    *,
    kill: Callable[[int, int], None] = signal.pidfd_send_signal,
    deadline: float | None = None,
) -> list[Removal]:
    """Remove those that are left over, processes first. `kill` sends a signal to a pidfd.

    After `deadline` (monotonic) nothing more is begun: the next round does it.
    """
    left = [thing for thing in things if thing.fate == "left"]
    removals = _end([thing for thing in left if thing.kind == "process"], kill)
    for thing in left:
        if thing.kind == "process":
            continue
        if deadline is not None and time.monotonic() > deadline:
            break
        try:
            if _BY_KIND[thing.kind](thing.name):
                removals.append(Removal(thing, "removed"))
        except (OSError, SandboxError) as error:
            removals.append(Removal(thing, "failed", str(error)))
    return removals


def _end(things: list[Thing], kill: Callable[[int, int], None]) -> list[Removal]:
    waiting: dict[int, Thing] = {}
    removals = []
    for thing in things:
        pid = int(thing.name)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        if owner_of(pid) != thing.owner:
            os.close(pidfd)
            continue
        try:
            kill(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            os.close(pidfd)
        except OSError as error:
            os.close(pidfd)
            removals.append(Removal(thing, "failed", str(error)))
        else:
            waiting[pidfd] = thing
    gone = _await_ends(waiting)
    for pidfd, thing in waiting.items():
        why = "" if pidfd in gone else f"killed and still there {DEATH_SECONDS:g} s later"
        removals.append(Removal(thing, "failed" if why else "removed", why))
        os.close(pidfd)
    return removals


def _await_ends(pidfds: Iterable[int]) -> set[int]:
    poll = select.poll()
    waiting = set(pidfds)
    for pidfd in waiting:
        poll.register(pidfd, select.POLLIN)
    gone: set[int] = set()
    until = time.monotonic() + DEATH_SECONDS
    while gone != waiting and (left := until - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(left * 1000):
            gone.add(pidfd)
            poll.unregister(pidfd)
    return gone


def _remove_group(name: str) -> bool:
    if not until(lambda: end_with_subgroups(Path(name)), DEATH_SECONDS, every=END_AGAIN_SECONDS):
        raise OSError(f"what is in it is killed and still there {DEATH_SECONDS:g} s later")
    return True


def _remove_network(name: str) -> bool:
    bridge.find().disconnect(name)
    return True


def _remove_folder(name: str) -> bool:
    path = Path(name)
    lock = _taken(path)
    if lock is None:
        return False
    try:
        for point in mounts_below(path):
            _unmount(point)
        # Through a mount that would not go, whatever is mounted there would be removed.
        if points := mounts_below(path):
            raise OSError(f"something is mounted at {points[0]}")
        shutil.rmtree(path)
    finally:
        os.close(lock)
    return True


def _remove_socket(name: str) -> bool:
    path = Path(name)
    lock = _taken(path.parent)
    if lock is None:
        return False
    try:
        if answers(path):
            return False
        path.unlink(missing_ok=True)
    finally:
        os.close(lock)
    return True


def _unmount(name: str) -> bool:
    if ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(name), MNT_DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return True


def _taken(path: Path) -> int | None:
    try:
        return folders.take(path)
    except FileNotFoundError:
        return None


_BY_KIND: dict[str, Callable[[str], bool]] = {
    "mount": _unmount,
    "group": _remove_group,
    "network": _remove_network,
    "socket": _remove_socket,
    "folder": _remove_folder,
}
"""Each removes one thing; False where it was somebody's or gone. Raises `OSError`."""
