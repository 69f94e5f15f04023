"""How the supervisor's tests start one, and see its children."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("supervised.py")
DEADLINE_S = 20.0


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        select.poll().poll(10)


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Service:
    """One that is running. `hangup`: what it inherits for SIGHUP, `default` or `ignore`, whoever started this run."""

    def __init__(self, name: str, place: Path, *, hangup: str = "default") -> None:
        self.place = place
        self.process = subprocess.Popen(
            ["env", f"--{hangup}-signal=HUP", sys.executable, str(PROGRAM), name, str(place)],
            stderr=subprocess.PIPE,
            text=True,
        )

    def starts(self, unit: str) -> list[tuple[int, str]]:
        file = self.place / f"{unit}.starts"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(line.split()[0]), line.partition(" ")[2].strip()) for line in lines]

    def pid(self, unit: str, start: int = 1) -> int:
        until(lambda: len(self.starts(unit)) >= start, f"start {start} of {unit}")
        return self.starts(unit)[start - 1][0]

    def note(self) -> dict[str, Any]:
        """How far its rolling restart is."""
        told: dict[str, Any] = json.loads((self.place / "supervisor.json").read_text())
        return told

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(DEADLINE_S)


Serve = Callable[..., Service]
