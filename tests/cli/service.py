"""A `prorl up` of its own for tests, and a look at all its processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PRORL = str(Path(sys.executable).with_name("prorl"))
READY_S = 90.0
STOP_S = 60.0


def until(true: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        select.poll().poll(50)


def clean_environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")} | more


def parents() -> dict[int, int]:
    """Each living process's parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state != "Z":
                    found[int(entry.name)] = int(parent)
    return found


class Up:
    """`prorl up --port 0` in a directory of its own."""

    def __init__(self, data_dir: Path, *options: str, cwd: Path | None = None, **environ: str) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            [
                PRORL,
                "up",
                "--port",
                "0",
                "--data-dir",
                str(data_dir),
                "--init",
                "2",
                "--rollout",
                "8",
                "--eval",
                "2",
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=cwd,
            env=clean_environment(**environ),
        )

    def __enter__(self) -> Self:
        poll = select.poll()
        assert self.process.stdout
        poll.register(self.process.stdout, select.POLLIN)
        deadline = time.monotonic() + READY_S
        said = b""
        while b"is ready" not in said:
            piece = b""
            if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                self.__exit__(None, None, None)
                raise AssertionError(f"not ready: {said!r} {self.logs()}")
            said += piece
        self.url: str = json.loads((self.data_dir / "service.json").read_text())["url"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait(STOP_S)
        self.process.kill()
        self.process.wait(STOP_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()

    def logs(self) -> str:
        texts = [f"--- {file.name}\n{file.read_text()[-3000:]}" for file in sorted(self.data_dir.glob("logs/*.log"))]
        return "\n".join(texts)

    def processes(self) -> list[int]:
        """All descendants of the supervisor, itself included."""
        tree = parents()
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in tree.items() if parent == pid]
        return found

    def named(self, name: str) -> int:
        """The pid of the process of that name (`prorl-init-0`, or what a program is called)."""
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
                if Path(f"/proc/{pid}/comm").read_text().strip() == name or name in command.split("\0"):
                    return pid
        raise LookupError(name)

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(STOP_S)

    def prorl(self, *arguments: str, code: int | None = 0, cwd: Path | None = None) -> str:
        """Run a command against this service; its stdout."""
        told = subprocess.run(
            [PRORL, *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=cwd,
            env=clean_environment(PRORL_URL=self.url),
            check=False,
        )
        assert code is None or told.returncode == code, f"{told.stdout}\n{told.stderr}\n{self.logs()}"
        return told.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.prorl(*arguments, "--json", code=None))


def gone(pids: Sequence[int]) -> bool:
    return not set(pids) & set(parents())
