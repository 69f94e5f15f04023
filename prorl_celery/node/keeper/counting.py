"""One look at a sandbox's memory: how much is in use, how sure that is, and who has it.

What counts is the memory of its processes. Files on its tmpfs have sizes of their own, so they and shared mappings
count only beyond these. A control group tells all that exactly, in one small file. Otherwise the processes are added
up: that is an upper bound, since forks share pages, so that where it alone is over an exact measure must follow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from prorl_celery.sandbox import memory, unseen
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.cgroups.readings import MemoryReading
from prorl_celery.sandbox.limits import SMALL_BYTES, files_bytes

UNSEEN_SECONDS = 3.0
"""How often the processes' descriptors are looked through for memory that none of them shows; it costs as much again
as all the rest.
"""


@dataclass(slots=True)
class Unseen:
    """Memory that no process shows, where there is no group to tell of it."""

    held: Mapping[int, int] = field(default_factory=dict)
    """Bytes of memory files (memfd) by the process that holds them open."""
    kept: int = 0
    """Bytes that the kernel spends on the names of files, beyond what files may take."""
    until: float = 0.0
    """When it is looked for again (monotonic)."""

    def renew(self, processes: list[memory.Process], first: int | None, spec: SandboxSpec) -> None:
        """Look for it, if it is time. `first`: the sandbox's first process inside."""
        now = time.monotonic()
        if now < self.until or first is None:
            return
        self.until = now + UNSEEN_SECONDS
        self.held = unseen.memory_files([process.pid for process in processes])
        spent = unseen.kept_for_files(first, max(spec.disk_bytes, SMALL_BYTES))
        self.kept = max(0, spent - files_bytes(spec))


@dataclass(frozen=True, slots=True)
class Look:
    """`used`: bytes, at least (`over`) or at most. `sizes`: bytes and pid of who has them, where that is asked for."""

    used: int
    over: bool = False
    unclear: bool = False
    """Only an exact measure can say whether it is over."""
    hopeless: bool = False
    """It is over by what stays when processes are killed."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    processes: list[memory.Process] = field(default_factory=list)


def by_group(reading: MemoryReading, spec: SandboxSpec, roots: list[int], most: int) -> Look:
    """Look at a sandbox in a control group. Raises `OSError`, `ValueError` when the group has gone."""
    used = reading.usage()
    if used > spec.memory_bytes:
        own, shared = reading.parts()
        used = own + max(0, shared - files_bytes(spec))
    if used <= spec.memory_bytes:
        return Look(used)
    return Look(used, over=True, sizes=[(process.anonymous, process.pid) for process in memory.walk(roots, most)])


def by_walk(hidden: Unseen, spec: SandboxSpec, roots: list[int], most: int) -> Look:
    """Look at a sandbox by its processes."""
    limit, files = spec.memory_bytes, files_bytes(spec)
    processes = memory.walk(roots, most)
    # An instance's is the root beside the outer process; else it is that one's only child.
    first = roots[-1] if len(roots) > 1 else next((process.pid for process in processes[1:]), None)
    hidden.renew(processes, first, spec)
    own = hidden.kept + sum(process.anonymous for process in processes)
    if max((process.anonymous for process in processes), default=0) > limit:
        return Look(own, over=True, sizes=[(process.anonymous, process.pid) for process in processes])
    if hidden.kept > limit:
        return Look(own, over=True, hopeless=True)
    shared = sum(hidden.held.values())
    if sum(process.resident for process in processes) > limit + files:
        shared = max(shared, memory.shared(processes))  # memory files that are mapped are among these
    used = own + max(0, shared - files)
    return Look(used, unclear=used > limit, processes=processes)


def exactly(own: int, shared: int, largest: list[tuple[int, int]], hidden: Unseen, spec: SandboxSpec) -> Look:
    """What an exact measure of the processes comes to."""
    held = sum(hidden.held.values())
    used = own + hidden.kept + max(0, max(shared, held) - files_bytes(spec))
    sizes = {pid: size for size, pid in largest}
    for pid, size in hidden.held.items():
        sizes[pid] = sizes.get(pid, 0) + size
    return Look(used, over=used > spec.memory_bytes, sizes=[(size, pid) for pid, size in sizes.items()])
