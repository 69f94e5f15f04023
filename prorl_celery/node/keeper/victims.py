"""Which processes of a sandbox are killed for its memory, and killing those and no others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from prorl_celery.sandbox import memory

LEAST_BYTES = 4 << 20
"""Nothing smaller is killed: it would help nobody, and what holds the sandbox is smaller."""


def kill_largest(sizes: list[tuple[int, int]], excess: int, roots: list[int], say: Callable[[str], None]) -> list[int]:
    """Kill the largest of these (bytes, pid), as many as hold `excess` bytes, and return their pidfds.

    The outer process (the first of `roots`), what it has started to hold the sandbox, and the other roots are spared.
    `say` is called with who they are just before, so that it is read before what their end leads to.
    """
    spared = {*roots, *memory.children(roots[0])}
    chosen: list[tuple[int, int]] = []
    for size, pid in sorted(sizes, reverse=True):
        if excess <= 0 or size < LEAST_BYTES:
            break
        if pid in spared:
            continue
        pidfd = _open(pid, roots, len(sizes))
        if pidfd is not None:
            chosen.append((pid, pidfd))
            excess -= size
    if chosen:
        more = f" and {len(chosen) - 1} more" if len(chosen) > 1 else ""
        say(f"{memory.name(chosen[0][0])}{more}")
    for _, pidfd in chosen:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended by itself
    return [pidfd for _, pidfd in chosen]


def _open(pid: int, roots: list[int], depth: int) -> int | None:
    """A pidfd of a process of the sandbox; None when it has gone, also when its pid is another's by now."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    above = pid
    for _ in range(depth + 1):
        above = memory.parent(above)
        if above in roots:
            return pidfd
        if above <= 1:
            break
    os.close(pidfd)
    return None
