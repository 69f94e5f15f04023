"""Sees the stage processes of a node end, at the moment they do: what they held then need not wait for its leases.

A process names its pid in its record. It is watched by a pidfd, and only where it is a sibling of ours, a child of the
same supervisor: another process that got the same pid is nobody's stage process. One that cannot be told apart is left
to the leases.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from prorl_celery.jobs.store import JobStore
from prorl_celery.sandbox.owner import pid_namespace
from prorl_celery.scheduling.nodes import NodeRegistry

log = logging.getLogger(__name__)

KEPT_MOST = 256
"""Most processes watched, or remembered as dead until Redis has been told; a node has a few dozen."""


@cache
def machine() -> str:
    """What tells this machine, and what pids mean here, from others and from its own earlier boots."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{pid_namespace()}"


class Deaths:
    """Watches the stage processes of one node. Used by one thread. Raises `StoreUnavailable`; then call again."""

    def __init__(self, node: str, store: JobStore, nodes: NodeRegistry) -> None:
        self._node = node
        self._store = store
        self._nodes = nodes
        self._watched: dict[str, tuple[int, str]] = {}  # process id -> its pidfd, its boot
        self._dead: dict[str, str] = {}  # process id -> its boot

    @property
    def descriptors(self) -> list[int]:
        """Readable when a process has ended."""
        return [pidfd for pidfd, _ in self._watched.values()]

    def look(self, boot: str, record: Mapping[str, Any]) -> None:
        """Watch a process, by its record; it may be dead already."""
        process = str(record.get("id", ""))
        if not process or process in self._watched or process in self._dead:
            return
        if len(self._watched) + len(self._dead) >= KEPT_MOST:
            log.warning("too many stage processes to watch: %s is left to its leases", process)
            return
        try:
            pidfd = os.pidfd_open(int(record["pid"]))
        except ProcessLookupError:
            self._dead[process] = boot
            return
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s cannot be watched: %s", process, error)
            return
        if _is_sibling(int(record["pid"])):
            self._watched[process] = pidfd, boot
        else:
            os.close(pidfd)

    def presume(self, boot: str, record: Mapping[str, Any]) -> None:
        """Take a process for dead whose machine is no more."""
        if process := str(record.get("id", "")):
            self._dead[process] = boot

    def settle(self) -> int:
        """Let the leases of those that have ended lapse, and forget them; how many jobs they had."""
        poll = select.poll()
        by_pidfd = {pidfd: process for process, (pidfd, _) in self._watched.items()}
        for pidfd in by_pidfd:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(0):
            _, boot = self._watched.pop(by_pidfd[pidfd])
            os.close(pidfd)
            self._dead[by_pidfd[pidfd]] = boot
        lost = 0
        for process, boot in list(self._dead.items()):
            jobs = self._store.lapse(process)
            self._nodes.forget_process(self._node, boot, process)
            del self._dead[process]
            if jobs:
                log.warning("%s has died with %d jobs", process, jobs)
            lost += jobs
        return lost


def _is_sibling(pid: int) -> bool:
    """Whether it is a child of our own parent."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has just ended, and its pidfd says so
    return int(parent) == os.getppid()
