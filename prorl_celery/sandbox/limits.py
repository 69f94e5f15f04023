"""What a sandbox may have, in numbers, and what its processes yield to.

Three things hold a sandbox to `SandboxSpec.memory_bytes`, by what the machine allows (`node/keeper/limits.py`):

- the watchdog, everywhere: the keeper sums the processes' memory once a second and kills the largest;
- a control group, where there may be one: a wall some way above that no burst passes;
- where there is none, a limit of one process's data. It is loose: it bounds a burst between two looks and leaves
  programs alone that set aside much more than they use (Java, node, numpy with many threads).

Without a group two gaps are left, and `prorl doctor` says so: a burst between two looks, and memory that belongs to no
process (`unseen`). The share of CPU is limited by a group only; everywhere sandboxes stand behind the service.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.cgroups.groups import Limits
from prorl_celery.sandbox.memory import can_walk

SMALL_PLACES = 4
SMALL_BYTES = 64 << 20
"""Besides its workspace a sandbox has a few small writable places, in memory like the workspace itself."""
OUR_PROCESSES = 64
"""A group counts the threads of the programs that hold the sandbox, too: Apptainer's are some dozens."""
DATA_FACTOR = 4
"""One process's data may be this many times the sandbox's memory (or an eighth of the machine's, if that is more:
Java sets aside 1/64 at its start, numpy 40 MiB a core) before it is refused more."""
NICE = 5
"""How far a sandbox's processes stand behind the service's own where the CPU is short."""
OUT_OF_MEMORY_SCORE = 500
"""When the whole machine is out of memory the kernel ends a sandbox's process rather than one of the service."""


def files_bytes(spec: SandboxSpec) -> int:
    """The most that a sandbox's files can take: they are in memory, and bounded by the sizes of their places."""
    return spec.disk_bytes + SMALL_PLACES * min(SMALL_BYTES, spec.disk_bytes)


def group_limits(spec: SandboxSpec) -> Limits:
    """The walls of a sandbox's control group. Files count in a group, so there is room for them."""
    return Limits(
        memory_bytes=spec.memory_bytes + files_bytes(spec),
        processes=spec.processes + OUR_PROCESSES,
        cpus=spec.cpus,
    )


def data_kib(spec: SandboxSpec) -> int:
    """RLIMIT_DATA of each process, for `ulimit -d`: what it may write to that is its own. Memory that is merely set
    aside does not count (Linux 4.7). The only limit where nothing can be watched, and then a strict one.
    """
    if not can_walk():
        return spec.memory_bytes >> 10
    return max(spec.memory_bytes * DATA_FACTOR, _machine_bytes() // 8) >> 10


def give_way() -> None:
    """Stand behind the service for CPU and before it when memory runs out; in a sandbox's first process."""
    os.nice(NICE)
    with suppress(OSError):  # not on every kernel; never a reason not to start
        path = Path("/proc/self/oom_score_adj")
        path.write_text(str(max(OUT_OF_MEMORY_SCORE, int(path.read_text(encoding="ascii")))), encoding="ascii")


@cache
def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
