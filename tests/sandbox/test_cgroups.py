"""Control groups of this machine's kernel: v1 for root, and what v2 does with groups whatever its controllers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from prorl_celery.node.pause import until
from prorl_celery.sandbox import owner
from prorl_celery.sandbox.cgroups import places
from prorl_celery.sandbox.cgroups.groups import Groups, Limits, end_with_subgroups
from prorl_celery.sandbox.cgroups.left import of_keepers, remove_left_behind
from prorl_celery.sandbox.cgroups.places import Nowhere, Places
from prorl_celery.sandbox.cgroups.readings import MemoryReading

HERE = places.find()
needs_groups = pytest.mark.skipif(isinstance(HERE, Nowhere), reason="this machine gives this user no control groups")
V2 = next((tree for tree in places.trees() if (tree / "cgroup.controllers").exists()), None)
needs_v2 = pytest.mark.skipif(
    V2 is None or not os.access(V2 / "cgroup.procs", os.W_OK), reason="no writable cgroup v2 tree"
)
MIB = 1 << 20
JOIN = "import sys; sys.stdin.readline(); "


@pytest.fixture
def groups() -> Iterator[Groups]:
    assert isinstance(HERE, Places)
    made = Groups(HERE)
    made.make()
    yield made
    assert until(made.remove, 20, every=0.02)


def in_group(groups: Groups, limits: Limits, code: str) -> subprocess.Popen[str]:
    """A Python program that begins when it is in the group `s1`."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", JOIN + code], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    groups.place("s1", limits, process.pid)
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return process


@needs_groups
def test_the_kernel_kills_a_program_at_the_wall_and_tells_so(groups):
    code = (
        "input(); import subprocess\n"
        "print(subprocess.run([sys.executable, '-c', 'x = bytearray(256 << 20)']).returncode)"
    )
    with in_group(groups, Limits(memory_bytes=64 * MIB, processes=50), code) as process:
        reading = MemoryReading(groups.memory("s1"), groups.version)
        alarm, readable = reading.alarm()
        out, _ = process.communicate("\n", timeout=60)
    assert out == f"{-signal.SIGKILL}\n"
    assert reading.kills() == 1
    if readable:
        assert int.from_bytes(os.read(alarm, 8), sys.byteorder) >= 1
    os.close(alarm)


@needs_groups
def test_memory_is_told_by_what_it_is(groups):
    limits = Limits(memory_bytes=512 * MIB, processes=50)
    code = "import mmap; x = bytearray(96 << 20); y = mmap.mmap(-1, 48 << 20); y[:] = x[: 48 << 20]; print(1); input()"
    with in_group(groups, limits, code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reading = MemoryReading(groups.memory("s1"), groups.version)
        assert until(lambda: reading.parts()[0] > 96 * MIB, 20, every=0.1), "the kernel counts with a delay"
        own, shared = reading.parts()
        assert own < 200 * MIB
        assert 47 * MIB < shared < 50 * MIB
        assert reading.usage() > 140 * MIB
        process.communicate("\n", timeout=20)


@needs_groups
def test_processes_are_capped(groups):
    code = """
import os, time
for number in range(30):
    try:
        if not os.fork(): time.sleep(60)
    except OSError:
        print(number); break
"""
    with in_group(groups, Limits(memory_bytes=512 * MIB, processes=10), code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "9\n"
        groups.end("s1")


@needs_groups
def test_cpu_time_is_cut_to_the_share(groups):
    assert isinstance(HERE, Places)
    if "cpu" not in HERE.folders:
        pytest.skip("no cpu controller for this user")
    folder = HERE.folders["cpu"] / groups.name / "s1"
    with in_group(groups, Limits(memory_bytes=512 * MIB, processes=10, cpus=0.1), "\nwhile True: pass") as process:
        assert until(lambda: throttled(folder) > 0, 30, every=0.05)
        process.kill()


def throttled(folder: Path) -> int:
    return int(dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())["nr_throttled"])


@needs_groups
def test_the_end_of_a_group_is_the_end_of_all_in_it(groups):
    code = "import os, time\nfor _ in range(3):\n    if not os.fork(): os.setsid(); time.sleep(600)\nprint(1)"
    with in_group(groups, Limits(memory_bytes=512 * MIB, processes=10), code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert groups.names() == ["s1"]
        assert until(lambda: groups.end("s1"), 20, every=0.02)
        assert groups.names() == []
        assert groups.end("s1"), "and again, when it is gone"


@needs_groups
def test_groups_of_dead_keepers_are_removed_with_what_is_in_them_and_nobody_elses():
    assert isinstance(HERE, Places)
    me = owner.this_process()
    dead = owner.Owner(me.pid, me.start - 1, me.namespace, me.uid)
    others = (
        me,
        owner.Owner(dead.pid, dead.start, dead.namespace + 1, dead.uid),
        owner.Owner(dead.pid, dead.start, dead.namespace, dead.uid + 1),
    )
    theirs = [Groups(HERE, f"prorl-keeper-{whose}") for whose in (dead, *others)]
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        for groups in theirs:
            groups.make()
        theirs[0].place("s1", Limits(memory_bytes=64 * MIB, processes=10), sleeper.pid)
        mine = {folder.name: whose for folder, whose in of_keepers()}
        assert mine[theirs[1].name].fate == "lives"
        assert mine[theirs[2].name].fate == "unknown"
        assert theirs[3].name not in mine, "another user's"
        remove_left_behind()  # any keeper that starts on this machine at this moment does the same
        assert sleeper.wait(timeout=20) == -signal.SIGKILL
        assert until(lambda: remove_left_behind() >= 0 and not theirs[0].memory("").exists(), 20, every=0.05)
        assert all(groups.memory("").is_dir() for groups in theirs[1:])
    finally:
        sleeper.kill()
        sleeper.wait()
        for groups in theirs:
            assert until(groups.remove, 20, every=0.02)


@needs_v2
def test_v2_moves_a_services_processes_down_and_ends_groups_on_a_real_kernel():
    """With whatever controller the kernel has there in place of those we want."""
    assert V2 is not None
    controllers = (V2 / "cgroup.controllers").read_text().split()
    base = V2 / f"prorl-test-{os.getpid()}"
    base.mkdir()
    service = subprocess.Popen(["sleep", "600"])
    try:
        (base / "cgroup.procs").write_text(str(service.pid))
        given = [name for name in controllers if name in (V2 / "cgroup.subtree_control").read_text().split()]
        groups = Groups(Places(2, dict.fromkeys(("memory", *given), base), leaf=base / "prorl-service"), "keeper")
        with suppress(OSError):  # the memory controller is another tree's; what comes before has been done
            groups.make()
        assert (base / "cgroup.procs").read_text() == ""
        assert (base / "prorl-service/cgroup.procs").read_text() == f"{service.pid}\n"
        (base / "keeper/s1").mkdir(parents=True)
        child = subprocess.Popen(["sleep", "600"])
        (base / "keeper/s1/cgroup.procs").write_text(str(child.pid))
        assert groups.names() == ["s1"]
        assert until(lambda: groups.remove() and child.poll() is not None, 20, every=0.02)
        assert service.poll() is None
    finally:
        service.kill()
        service.wait()
        assert until(lambda: end_with_subgroups(base), 20, every=0.02)
