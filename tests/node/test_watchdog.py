"""The watchdog by itself, on processes that stand in for a sandbox."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from prorl_celery.node.keeper import watchdog
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.process import SandboxProcess
from prorl_celery.node.keeper.victims import kill_largest
from prorl_celery.node.keeper.watchdog import Watchdog
from prorl_celery.sandbox import memory
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.launch import Launch

MIB = 1 << 20
SPEC = SandboxSpec(job_id="job", attempt=1, memory_bytes=64 * MIB, disk_bytes=1 * MIB)
HOG = "import time; x = bytearray(210 << 20); time.sleep(600)"


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def started(loop: Loop) -> Iterator[Callable[[str], SandboxProcess]]:
    """Starts a Python program as a sandbox's outer process."""
    processes: list[SandboxProcess] = []

    def start(code: str) -> SandboxProcess:
        launch = Launch(argv=(sys.executable, "-c", code), env={"PATH": "/usr/bin:/bin"}, user=None)
        processes.append(SandboxProcess(launch, loop, ended=loop.stop, stuck=lambda: None))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        if process.alive:
            loop.after(20.0, loop.stop)
            loop.resume()


def run(loop: Loop, seconds: float = 30.0) -> None:
    """Until something stops the loop, or for so long."""
    loop.after(seconds, loop.stop)
    loop.resume()


def test_a_sandbox_in_which_nothing_can_be_killed_is_ended(loop, started, monkeypatch):
    monkeypatch.setattr(watchdog, "DYING_SECONDS", 0.3)
    ended: list[str] = []

    def end(name: str) -> None:
        ended.append(name)
        loop.stop()

    dog = Watchdog(loop, None, end)
    dog.watch("s1", SPEC, started(HOG))
    run(loop)
    assert ended == ["s1"]
    dog.forget("s1")


def test_one_that_stays_over_is_ended_after_so_many_kills(loop, started, monkeypatch):
    monkeypatch.setattr(watchdog, "MOST_KILLS", 2)
    # One at a time, as where what is killed gives less back than it seemed to have.
    monkeypatch.setattr(watchdog, "kill_largest", lambda sizes, excess, roots, say: kill_largest(sizes, 1, roots, say))
    ended: list[str] = []

    def end(name: str) -> None:
        ended.append(name)
        loop.stop()

    code = (
        "import os, subprocess, sys\n"
        f"hog = [sys.executable, '-c', {HOG!r}]\n"
        # The outer process's children are spared, so a child starts them.
        "if os.fork(): os.wait()\n"
        "hogs = [subprocess.Popen(hog) for _ in range(5)]\n"
        "[hog.wait() for hog in hogs]\n"
    )
    dog = Watchdog(loop, None, end)
    process = started(code)
    hogs: list[int] = []

    def begin_when_they_are_large() -> None:
        hogs[:] = [p.pid for p in memory.walk([process.pid], 100) if p.anonymous > 200 * MIB]
        if len(hogs) < 5:
            loop.after(0.05, begin_when_they_are_large)
        else:
            dog.watch("s1", SPEC, process)

    begin_when_they_are_large()
    run(loop, 60.0)
    assert ended == ["s1"]
    assert dog.kills == 3
    dog.forget("s1")


def test_looks_come_more_seldom_before_they_take_the_keepers_time(loop, started, monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "SHARE", 1e-9)
    looks: list[int] = []
    walk = memory.walk
    monkeypatch.setattr(memory, "walk", lambda roots, most: looks.append(1) or walk(roots, most))
    dog = Watchdog(loop, None, lambda name: None)
    dog.watch("s1", SPEC, started("import time; time.sleep(600)"))
    run(loop, 1.0)
    assert len(looks) == 1
    dog.forget("s1")


def test_a_sandbox_that_has_gone_is_looked_at_no_more(loop, started, monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.01)
    looks: list[int] = []
    walk = memory.walk
    monkeypatch.setattr(memory, "walk", lambda roots, most: looks.append(1) or walk(roots, most))
    dog = Watchdog(loop, None, lambda name: None)
    process = started("")
    dog.watch("s1", SPEC, process)
    run(loop)
    assert not process.alive
    before = len(looks)
    run(loop, 0.2)
    assert len(looks) == before
    dog.forget("s1")
    dog.forget("s1")


def test_the_largest_are_killed_as_many_as_it_takes_and_nobody_outside():
    code = "import time, sys; x = bytearray(int(sys.argv[1]) << 20); print(1, flush=True); time.sleep(600)"
    outer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys\n"
            "if os.fork(): os.wait()\n"
            f"hogs = [subprocess.Popen([sys.executable, '-c', {code!r}, size]) for size in ('20', '40', '80')]\n"
            "[hog.wait() for hog in hogs]\n",
        ],
        stdout=subprocess.PIPE,
    )
    outsider = subprocess.Popen([sys.executable, "-c", code, "160"], stdout=subprocess.PIPE)
    said: list[str] = []
    assert outer.stdout is not None
    assert outsider.stdout is not None
    try:
        for stream in (outer.stdout, outer.stdout, outer.stdout, outsider.stdout):
            assert stream.readline() == b"1\n"
        inside = memory.walk([outer.pid], 100)
        sizes = [(process.anonymous, process.pid) for process in inside]
        most = [pid for _, pid in sorted(sizes, reverse=True)[:2]]
        outside = memory.walk([outsider.pid], 1)[0]
        killed = kill_largest([*sizes, (outside.anonymous, outsider.pid)], 100 * MIB, [outer.pid], said.append)
        assert len(killed) == 2
        for pidfd in killed:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            assert poll.poll(20_000)
        left = [process.pid for process in memory.walk([outer.pid], 100) if process.resident]
        assert set(left).isdisjoint(most)
        assert len(left) == len(inside) - 2
        assert said == [f"{memory.name(outer.pid)} and 1 more"]
        assert outsider.poll() is None
        assert outer.poll() is None
    finally:
        for process in memory.walk([outer.pid], 100):
            subprocess.run(["/bin/kill", "-9", str(process.pid)], check=False, capture_output=True)
        outsider.send_signal(signal.SIGKILL)
        for child in (outer, outsider):
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
