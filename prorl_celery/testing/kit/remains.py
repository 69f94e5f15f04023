"""What a job has left behind on this machine: sandboxes, processes, threads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from prorl_celery.sandbox.client import KeeperClient

PATIENCE_SECONDS = 3.0
"""How long what a job has started may take to be gone behind it."""
LOOK_AGAIN_SECONDS = 0.02
OURS = ("model-loop", "deadlines", "warden", "slot", "heartbeat")


class Before:
    """What there was before a job; `left` tells what has been added and does not go."""

    def __init__(self, keeper: KeeperClient, keeper_pid: int) -> None:
        self._keeper = keeper
        self._keeper_pid = keeper_pid
        self._processes = set(self._children())
        self._threads = set(threading.enumerate())

    def left(self) -> list[str]:
        """Each in a few words, once it has been waited for."""
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
        while (found := self._now()) and time.monotonic() < deadline:
            pause.wait(LOOK_AGAIN_SECONDS)
        return found

    def _now(self) -> list[str]:
        found = [f"the sandbox {left['sandbox_id']}" for left in self._keeper.list()]
        found += [f"the process {pid} ({name})" for pid, name in self._children().items() if pid not in self._processes]
        for thread in threading.enumerate():
            if thread not in self._threads and not thread.name.startswith(OURS):
                found.append(f"the thread {thread.name!r}")
        return found

    def _children(self) -> dict[int, str]:
        """Our descendants by pid, without the keeper's: its sandboxes it lists itself."""
        below: dict[int, list[tuple[int, str]]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
                if rest[0] != "Z":
                    below.setdefault(int(rest[1]), []).append((int(entry.name), name))
        found: dict[int, str] = {}
        ahead = [os.getpid()]
        while ahead:
            for pid, name in below.get(ahead.pop(), []):
                if pid != self._keeper_pid:
                    found[pid] = name
                    ahead.append(pid)
        return found
