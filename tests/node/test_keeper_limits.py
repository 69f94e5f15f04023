"""What the keeper does to hold its sandboxes to their limits, by what the machine allows."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_help import eventually, spec

from prorl_celery.node.janitor.removal import remove
from prorl_celery.node.janitor.things import inventory
from prorl_celery.node.pause import until
from prorl_celery.sandbox import memory, owner
from prorl_celery.sandbox.cgroups import places
from prorl_celery.sandbox.cgroups.groups import Groups
from prorl_celery.sandbox.cgroups.places import Nowhere, Places
from prorl_celery.testing.keeper import KeeperProcess

HERE = places.find()
needs_groups = pytest.mark.skipif(isinstance(HERE, Nowhere), reason="this machine gives this user no control groups")


@pytest.fixture
def watching(keeper_settings) -> Iterator[KeeperProcess]:
    """A keeper that may not make groups."""
    with KeeperProcess(dataclasses.replace(keeper_settings, sandbox_cgroups="off")) as process:
        yield process


def keepers_group(keeper: KeeperProcess, controller: str = "memory") -> Path:
    assert isinstance(HERE, Places)
    pid = keeper.process.pid
    whose = owner.Owner(pid, owner.start_time(pid) or 0, owner.pid_namespace(), os.getuid())
    return HERE.folders[controller] / f"prorl-keeper-{whose}"


def pid_of(keeper: KeeperProcess, sandbox_id: str) -> int:
    return next(e["pid"] for e in keeper.client.list() if e["sandbox_id"] == sandbox_id)


@needs_groups
def test_all_of_a_sandbox_is_in_its_group_from_the_first_command_on_and_the_group_goes_with_it(keeper, never):
    assert isinstance(HERE, Places)
    status = keeper.client.status()
    assert status["memory_limit"] == f"cgroup v{HERE.version}"
    sandbox = keeper.client.start(spec(cpus=1.5), cancel=never, timeout=30)
    group = keepers_group(keeper) / sandbox.handle.sandbox_id
    sandbox.shell.run("sleep 1000 & (setsid sleep 1000 &); true", timeout=10)
    processes = {process.pid for process in memory.walk([pid_of(keeper, sandbox.handle.sandbox_id)], 100)}
    assert len(processes) >= 6
    assert {int(pid) for pid in (group / "cgroup.procs").read_text().split()} == processes
    if HERE.version == 1:
        cpu = keepers_group(keeper, "cpu") / sandbox.handle.sandbox_id
        assert (cpu / "cpu.cfs_quota_us").read_text() == "150000\n"
        pids = keepers_group(keeper, "pids") / sandbox.handle.sandbox_id
        assert int((pids / "pids.max").read_text()) >= 256
    sandbox.stop()
    assert eventually(lambda: not group.exists())


@needs_groups
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_keepers_groups_end_with_it_however_it_ends(keeper, never, how):
    keeper.client.start(spec(), cancel=never, timeout=30).close()
    group = keepers_group(keeper)
    assert group.is_dir()
    keeper.stop() if how == "stop" else keeper.kill()
    assert eventually(lambda: not group.exists())


@needs_groups
def test_without_the_child_that_makes_groups_sandboxes_start_and_are_watched(keeper, never):
    before = keeper.client.start(spec("before"), cancel=never, timeout=30)
    (warden,) = [pid for pid in memory.children(keeper.process.pid) if memory.name(pid) == "prorl-warden"]
    os.kill(warden, signal.SIGKILL)
    assert eventually(lambda: keeper.client.status()["memory_limit"] == "watchdog")
    after = keeper.client.start(spec("after", memory_bytes=64 << 20), cancel=never, timeout=30)
    assert before.shell.run("echo still", timeout=10).output == "still\n"
    hog = after.shell.run("python3 -c 'import time; x = bytearray(512 << 20); time.sleep(60)'; echo $?", timeout=60)
    assert hog.output.endswith("137\n")
    before.stop()
    after.stop()


@needs_groups
def test_the_next_keeper_removes_what_a_keeper_and_its_child_left_when_both_were_killed(keeper, never, tmp_path):
    keeper.client.start(spec(), cancel=never, timeout=30).close()
    group = keepers_group(keeper)
    (warden,) = [pid for pid in memory.children(keeper.process.pid) if memory.name(pid) == "prorl-warden"]
    os.kill(warden, signal.SIGKILL)
    keeper.kill()
    with KeeperProcess(dataclasses.replace(keeper.settings, run_dir=tmp_path / "next")):
        assert eventually(lambda: not group.exists())


@needs_groups
def test_a_janitor_knows_whose_a_group_is_and_removes_a_dead_keepers(keeper, never):
    assert isinstance(HERE, Places)
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30)
    lives = keepers_group(keeper)
    me = owner.this_process()
    dead = Groups(HERE, f"prorl-keeper-{dataclasses.replace(me, start=me.start - 1)}")
    dead.make()
    seen = {thing.name: thing for thing in inventory(keeper.settings) if thing.kind == "group"}
    assert seen[str(lives)].fate == "lives"
    # Any keeper that starts on this machine at this moment removes the other.
    remove(thing for thing in seen.values() if thing.name in (str(lives), str(dead.memory(""))))
    assert not dead.memory("").exists()
    assert sandbox.shell.run("echo here", timeout=10).output == "here\n"
    assert until(dead.remove, 20, every=0.02)
    sandbox.stop()


def test_where_no_groups_are_wanted_the_watchdog_holds(watching, never):
    assert watching.client.status()["memory_limit"] == "watchdog"
    assert watching.client.status()["cpu_limit"] == "none"
    sandbox = watching.client.start(spec(memory_bytes=64 << 20), cancel=never, timeout=30)
    said = sandbox.shell.run("python3 -c 'import time; x = bytearray(512 << 20); time.sleep(60)'; echo $?", timeout=60)
    assert "[killed python3: over the sandbox's memory of 64 MiB]\n" in said.output
    assert said.output.endswith("137\n")
    assert watching.client.status()["memory_kills"] == 1
    assert memory.has_swap() or not list(Path("/sys/fs/cgroup").glob(f"**/prorl-keeper-{watching.process.pid}-*"))
    sandbox.stop()


def test_a_program_that_hides_behind_a_first_process_is_found(watching, never):
    """An orphan's parent is the sandbox's first process; a thread's children are the thread's."""
    sandbox = watching.client.start(spec(memory_bytes=64 << 20), cancel=never, timeout=30)
    code = (
        "import subprocess, sys, threading\n"
        "hog = [sys.executable, '-c', 'import time; x = bytearray(512 << 20); time.sleep(60)']\n"
        "thread = threading.Thread(target=lambda: print(subprocess.run(hog).returncode))\n"
        "thread.start(); thread.join()\n"
    )
    sandbox.files.write("/workspace/thread.py", code.encode())
    assert "-9\n" in sandbox.shell.run("python3 thread.py", timeout=60).output
    daemon = "(setsid bash -c 'x=$(head -c 300m /dev/zero | tr \"\\0\" x); sleep 600; echo $x' >/dev/null 2>&1 &)"
    sandbox.shell.run(daemon, timeout=60)
    assert eventually(lambda: watching.client.status()["memory_kills"] >= 2, 60)
    sandbox.stop()


def test_what_runs_in_a_sandbox_stands_behind_the_service(watching, never):
    sandbox = watching.client.start(spec(), cancel=never, timeout=30)
    niceness, score = sandbox.shell.run("nice; cat /proc/self/oom_score_adj", timeout=10).output.split()
    assert (int(niceness), int(score) >= 500) == (5, True)
    assert sandbox.shell.run("nice -n -5 true 2>&1; renice -n 0 $$ 2>&1", timeout=10).exit_code != 0
    sandbox.stop()
