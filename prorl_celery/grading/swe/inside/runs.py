"""Runs in an eval's sandbox: confined runs of a test command, watched to their end.

A run tells its tests' outcomes over a pipe (`told`). Output is drained, and its end kept. A run is over when its first
process has ended, by itself or because it took too long, printed or told too much; whatever it leaves is killed with
it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Sequence
from typing import Any

from prorl_celery.grading.swe.inside.jail import confine
from prorl_celery.grading.swe.inside.told import Told

KEPT_BYTES = 4096
"""Of a run's output, its end."""
TOLD_BYTES = 32 << 20
"""Most that a run may tell: a hundred thousand tests."""
FILE_BYTES = 64 << 20
"""Largest file that a run may write."""
READ_BYTES = 64 << 10
PROCESSES = 100
"""Most that the runs may have at once; threads are bounded by the limit below."""
TASKS = 200
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.5
"""How often it is looked whether there are too many processes."""


class Run:
    """One run of the test command in a tree of its own: `folder`/repo."""

    def __init__(
        self,
        folder: str,
        command: str,
        tools: str,
        test_file: str,
        test: bytes,
        base_names: Sequence[str],
        *,
        shims: str,
        readable: Sequence[str],
    ) -> None:
        self.folder = folder
        self._command = command
        self._shims = shims
        self._readable = [path for path in readable if path]
        self._token = os.urandom(16).hex()
        self._facts = {
            "token": self._token, "tools": tools, "test_file": os.path.join(folder, "repo", test_file),
            "base_names": list(base_names),
            "test_sha256": hashlib.sha256(test).hexdigest(),
            "repository": os.path.join(folder, "repo"),
        }  # fmt: skip
        self._made = self._stamp()
        self.pid = 0
        self.output = self.channel = -1
        self.status: int | None = None
        self.stopped: str | None = None
        self._tail = b""
        self._printed = 0
        self._told_bytes = 0
        self._began = self._seconds = 0.0
        self._told = Told(self._token)

    def start(self) -> None:
        """Fork. The question and the channel are descriptors that the command's programs inherit."""
        question, asking = os.pipe()
        os.write(asking, json.dumps(self._facts).encode())
        os.close(asking)
        self.output, printing = os.pipe()
        self.channel, telling = os.pipe()
        self._began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(question, printing, telling)
            except BaseException:  # noqa: BLE001 - this is a forked child, and its only way to tell
                traceback.print_exc()
            finally:
                os._exit(126)
        for descriptor in (question, printing, telling):
            os.close(descriptor)

    def _become(self, question: int, printing: int, telling: int) -> None:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(printing, 1)
        os.dup2(printing, 2)
        # Above what a command would use; the guard's own descriptors are not inherited, being close-on-exec.
        os.dup2(question, 40)
        os.dup2(telling, 41)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        tasks = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        tasks = TASKS if tasks == resource.RLIM_INFINITY else min(TASKS, tasks)
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))
        tmp = os.path.join(self.folder, "tmp")
        environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("PYTEST", "PRORL", "PYTHON")) and name != "BASH_ENV"
        }  # fmt: skip
        environment.update(
            HOME=os.path.join(self.folder, "home"),
            TMPDIR=tmp,
            PATH=self._shims + os.pathsep + environment.get("PATH", "/usr/bin:/bin"),
            PRORL_QUESTION="40",
            PRORL_CHANNEL="41",
            PRORL_TOOLS=str(self._facts["tools"]),
            PYTHONUNBUFFERED="1",
        )
        os.chdir(os.path.join(self.folder, "repo"))
        confine(self.folder, self._readable, ["/workspace", "/home", "/root"])
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        os.execve(shell, [shell, "-c", self._command], environment)

    def hear(self, descriptor: int, most_output: int) -> bool:
        """Read what is there; False at the end of it."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        if descriptor == self.output:
            self._printed += len(data)
            self._tail = (self._tail + data)[-KEPT_BYTES:]
            if self._printed > most_output:
                self.stopped = self.stopped or "output"
        else:
            self._told_bytes += len(data)
            if self._told_bytes > TOLD_BYTES:
                self.stopped = self.stopped or "output"
                return True
            self._told.hear(data)
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        """Of the test file: which it is, and when it was last changed in any way, which no process can forge."""
        try:
            found = os.lstat(str(self._facts["test_file"]))
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_ctime_ns)

    def told(self) -> dict[str, Any]:
        """What is known of the run, JSON. For when it is over and its folder still there."""
        if self._stamp() != self._made:
            self._told.facts["changed"] = ["the test file", *self._told.facts["changed"]]
        return {
            **self._told.facts, "outcomes": self._told.outcomes(), "stopped": self.stopped, "status": self.status,
            "seconds": round(self._seconds, 3), "output": self._tail.decode("utf-8", "replace"),
        }  # fmt: skip

    def over(self, status: int) -> None:
        """Its first process has ended."""
        self.status = status
        self._seconds = time.monotonic() - self._began


def run_together(runs: list[Run], seconds: float, most_output: int) -> None:
    """Start runs at the same time, and return when all are over and every process of theirs is dead."""
    awake, waking = os.pipe()
    for descriptor in (awake, waking):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        for run in runs:
            run.start()
            for descriptor in (run.output, run.channel):
                os.set_blocking(descriptor, False)
        _watch(runs, time.monotonic() + seconds, most_output, awake)
    finally:
        kill_all()
        signal.set_wakeup_fd(-1)
        for run in runs:
            os.close(run.output)
            os.close(run.channel)
        os.close(awake)
        os.close(waking)


def _watch(runs: list[Run], deadline: float, most_output: int, awake: int) -> None:
    of = {descriptor: run for run in runs for descriptor in (run.output, run.channel)}
    live = set(of)
    look = time.monotonic() + LOOK_SECONDS
    while any(run.status is None for run in runs):
        left = deadline - time.monotonic()
        crowd = False
        if time.monotonic() >= look:
            look = time.monotonic() + LOOK_SECONDS
            crowd = len(_descendants(os.getpid())) > PROCESSES
        for run in runs:
            if run.status is None and crowd:
                run.stopped = run.stopped or "processes"
            if run.status is None and (left <= 0 or run.stopped):
                run.stopped = run.stopped or "time"
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)
        ready, _, _ = select.select([awake, *live], [], [], LOOK_SECONDS)
        for descriptor in ready:
            if descriptor == awake:
                with contextlib.suppress(BlockingIOError):
                    os.read(awake, 512)
            elif not of[descriptor].hear(descriptor, most_output):
                live.discard(descriptor)
        _reap(runs)
    for descriptor in list(live):  # what it had said when it ended
        run = of[descriptor]
        for _ in range(64):
            if not select.select([descriptor], [], [], 0)[0] or not run.hear(descriptor, most_output):
                break


def _reap(runs: list[Run]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for run in runs:
            if run.pid == pid:
                run.over(os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else status)


def kill_all() -> None:
    """Kill every process below this one, which is their reaper: first stop them, lest they fork faster.

    Raises: `RuntimeError` when they cannot be killed.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        found = _descendants(os.getpid())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            raise RuntimeError("the tests' processes cannot be killed")
        time.sleep(0.001)  # a killed process takes as long to die, and nothing tells of the last


def _descendants(top: int) -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b") ")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found: set[int] = set()
    grew = True
    while grew:
        grew = False
        for pid, parent in parents.items():
            if pid not in found and (parent == top or parent in found):
                found.add(pid)
                grew = True
    return found
