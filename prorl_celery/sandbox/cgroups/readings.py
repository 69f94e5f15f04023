"""What a sandbox's control group says of its memory. Nothing here blocks."""

from __future__ import annotations

import os
from pathlib import Path

from prorl_celery.sandbox.memory import read


class MemoryReading:
    """Reads one group's memory; all calls raise `OSError` when the group is gone."""

    def __init__(self, folder: Path, version: int) -> None:
        first = version == 1
        self._usage = str(folder / ("memory.usage_in_bytes" if first else "memory.current"))
        self._stat = str(folder / "memory.stat")
        self._events = str(folder / ("memory.oom_control" if first else "memory.events"))
        self._anonymous = (b"total_rss", b"total_swap") if first else (b"anon",)
        self._shared = b"total_shmem" if first else b"shmem"
        self._control = str(folder / "cgroup.event_control") if first else None

    def usage(self) -> int:
        """Bytes of everything: processes, files on tmpfs, cached files, what the kernel keeps for them."""
        return int(read(self._usage))

    def parts(self) -> tuple[int, int]:
        """Bytes of anonymous memory and of files on tmpfs and shared mappings."""
        found = dict(line.split(None, 1) for line in read(self._stat).splitlines() if line)
        return sum(int(found.get(name, 0)) for name in self._anonymous), int(found.get(self._shared, 0))

    def kills(self) -> int:
        """How many processes the kernel has killed for want of memory in the group."""
        for line in read(self._events).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        return 0

    def alarm(self) -> tuple[int, bool]:
        """A descriptor that tells when the group is out of memory, and how: it becomes readable (True, v1), or has an
        exceptional condition until it is read anew (False, v2).
        """
        events = os.open(self._events, os.O_RDONLY | os.O_CLOEXEC)
        if self._control is None:
            return events, False
        try:
            alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            try:
                control = os.open(self._control, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(control, f"{alarm} {events}".encode("ascii"))
                finally:
                    os.close(control)
            except OSError:
                os.close(alarm)
                raise
        finally:
            os.close(events)
        return alarm, True
