"""What the tests of the keeper share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from prorl_celery.sandbox.base import SandboxSpec

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
