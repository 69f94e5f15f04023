"""Memory that a sandbox takes and none of its processes shows: files in memory that are open and nowhere mapped
(memfd), and what the kernel spends on each file of a tmpfs beside its bytes.

A control group counts both; this is for where there is none. It still does not see what lies in the buffers of pipes
and sockets, nor System V shared memory that nobody is attached to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress

FILE_BYTES = 1024
"""What a tmpfs's inode and its name take."""
PLACES = ("/workspace", "/tmp", "/var/tmp", "/dev/shm", "/home/agent")
"""Where a sandbox has a tmpfs that may be written to."""
MOST_DESCRIPTORS = 8192
"""Looked at in one call: some milliseconds. A sandbox that has more hides the rest."""
_MEMFD = "/memfd:"


def memory_files(pids: Sequence[int]) -> dict[int, int]:
    """Bytes of the memfds that each of these processes holds open, by pid; one that several hold is the first's."""
    found: dict[int, int] = {}
    counted: set[int] = set()
    left = MOST_DESCRIPTORS
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):  # it has ended, or is not ours to look at
            for name in os.listdir(folder)[:left]:  # noqa: PTH208 - a Path costs more than the call
                left -= 1
                with suppress(OSError):
                    if not os.readlink(f"{folder}/{name}").startswith(_MEMFD):  # noqa: PTH115
                        continue
                    about = os.stat(f"{folder}/{name}")  # noqa: PTH116
                    if about.st_ino not in counted:
                        counted.add(about.st_ino)
                        found[pid] = found.get(pid, 0) + about.st_blocks * 512
    return found


def kept_for_files(pid: int, largest_bytes: int) -> int:
    """Bytes that the kernel spends on the files of a sandbox's tmpfs, as its process `pid` sees them; 0 when that has
    gone. What is larger than `largest_bytes` is none of the sandbox's: the process has yet to get there.

    `pid` must be one whose mounts the agent cannot change: to look at a file system of his could take for ever.
    """
    used: dict[int, int] = {}
    with suppress(OSError), ExitStack() as stack:
        root = _enter(stack, f"/proc/{pid}/root", None)
        for place in PLACES:
            with suppress(OSError):
                folder = root
                for name in place.split("/")[1:]:
                    folder = _enter(stack, name, folder)
                about = os.fstatvfs(folder)
                if about.f_blocks * about.f_frsize <= largest_bytes:
                    used[about.f_fsid] = about.f_files - about.f_ffree
    return FILE_BYTES * sum(used.values())


def _enter(stack: ExitStack, name: str, above: int | None) -> int:
    """A folder, and never what a link leads to: that would be looked for among the host's."""
    nofollow = 0 if above is None else os.O_NOFOLLOW
    folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | nofollow, dir_fd=above)
    stack.callback(os.close, folder)
    return folder
