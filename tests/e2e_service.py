"""A whole service for a test: `prorl up` as a user starts it, in a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prorl_celery.client import Client
from prorl_celery.node.places import run_dir_for
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings
from prorl_celery.testing import ScriptedBackend

READY_SECONDS = 90.0

QUICK = {
    "PRORL_LEASE": "3",
    "PRORL_HEARTBEAT": "1",
    "PRORL_SWEEP": "0.5",
    "PRORL_REPUBLISH_AFTER": "3",
    "PRORL_DRAIN": "1",
    "PRORL_HANDLERS": "prorl_celery.bench.handlers:WaitHandler",
}
"""Settings by which what is lost is found within seconds."""


class Service:
    """A running `prorl up`: its API, its processes, its data."""

    def __init__(self, process: subprocess.Popen[str], data_dir: Path, url: str) -> None:
        self.process = process
        self.data_dir = data_dir
        self.url = url
        self.client = Client(url)

    def pids(self, name: str = "") -> list[int]:
        """The pids of our child processes whose name begins so: `init-`, `rollout-`, `eval-`, `api`, `keeper`..."""
        return [pid for pid, comm in children(self.process.pid) if comm.startswith(f"prorl-{name}")]

    def kill(self, name: str) -> int:
        """`kill -9` one process of that name; its pid."""
        pid = self.pids(name)[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def keeper(self) -> dict[str, Any]:
        """The keeper's own counts, as of now."""
        (node,) = self.client.nodes()
        settings = Settings(run_dir=run_dir_for(self.data_dir), node=node["node"])
        return KeeperClient(settings).status()

    def add_backend(self, backend: ScriptedBackend, **fields: Any) -> None:
        spec = {"url": backend.url, "model": "scripted", "tokenizer": str(backend.tokenizer_dir)}
        self.client.add_backend(**(spec | fields))

    def logs(self) -> str:
        """The end of every log, for a failure's message."""
        parts = [
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted((self.data_dir / "logs").glob("*.log"))
        ]
        return "\n".join(parts)


@contextmanager
def running(data_dir: Path, *arguments: str, cwd: Path | None = None, **environment: str) -> Iterator[Service]:
    """Start `prorl up` with these arguments and variables; stop it at the end."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")} | environment
    env.setdefault("PRORL_ROLLOUT_PROCESSES", "2")
    command = [
        str(Path(sys.executable).with_name("prorl")),
        "up",
        "--port",
        "0",
        "--data-dir",
        str(data_dir),
        *arguments,
    ]
    process = subprocess.Popen(command, cwd=cwd or data_dir.parent, env=env, text=True, stdout=subprocess.PIPE)
    try:
        url = _ready(process, data_dir)
        service = Service(process, data_dir, url)
        with service.client:
            yield service
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def _ready(process: subprocess.Popen[str], data_dir: Path) -> str:
    noted = data_dir / "service.json"

    def tells() -> bool:
        # A service that was killed left its note behind: only the one with our pid counts.
        return noted.exists() and json.loads(noted.read_text())["pid"] == process.pid

    if not eventually(lambda: tells() or process.poll() is not None, READY_SECONDS) or not tells():
        logs = "\n".join(p.read_text()[-2000:] for p in sorted((data_dir / "logs").glob("*.log")))
        raise AssertionError(f"the service is not ready (exit code {process.poll()})\n{logs}")
    return str(json.loads(noted.read_text())["url"])


def eventually(true: Callable[[], Any], seconds: float) -> bool:
    """Whether a condition comes true within these seconds."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < deadline:
        if true():
            return True
        pause.wait(0.05)
    return bool(true())


def children(pid: int) -> list[tuple[int, str]]:
    """All descendants of a process: pid and name."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            rest = stat[stat.rindex(")") + 2 :].split()
            if rest[0] != "Z":
                parents.setdefault(int(rest[1]), []).append((int(entry.name), name))
    found, ahead = [], [pid]
    while ahead:
        below = parents.get(ahead.pop(), [])
        found += below
        ahead += [child for child, _ in below]
    return found
