"""What is left when a keeper, or who uses it, dies: nothing. Real processes, killed with -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from keeper_help import eventually, guard_of, marked_processes, share_of, spec, things_of

from prorl_celery.errors import KeeperLost, SandboxError
from prorl_celery.node.janitor.removal import clear_left
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.base import SandboxHandle
from prorl_celery.sandbox.owner import pid_namespace
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess


@pytest.mark.parametrize("how", ["kill", "stop", "terminate"])
def test_the_keepers_end_is_the_end_of_every_sandbox(keeper, never, how):
    mark = f"1{random.randrange(10**8, 10**9)}"
    sandboxes = [keeper.client.start(spec(f"job-{n}"), cancel=never, timeout=30) for n in range(3)]
    for sandbox in sandboxes:
        sandbox.shell.run(f"sleep {mark} & (setsid sleep {mark} &) ; disown -a", timeout=5)
    assert eventually(lambda: len(marked_processes(mark)) == 6)
    if how == "kill":
        keeper.kill()
    elif how == "terminate":
        keeper.process.terminate()
        assert keeper.process.wait(timeout=15) == 0
    else:
        keeper.stop()
        assert keeper.process.returncode == 0
    assert eventually(lambda: not marked_processes(mark), 5.0)
    with pytest.raises(SandboxError):
        sandboxes[0].shell.run("true", timeout=5)
    for sandbox in sandboxes:
        sandbox.close()


def test_a_workers_death_leaves_its_sandbox_to_whoever_attaches(keeper, never):
    worker = start_in_a_worker(keeper.settings, "keep")
    handle = SandboxHandle.from_json(json.loads(worker.stdout.readline()))
    worker.kill()
    worker.wait(timeout=5)
    worker.stdout.close()
    sandbox = keeper.client.attach(handle, cancel=never)
    assert sandbox.shell.run("echo $owner", timeout=5).output == "worker\n"
    sandbox.stop()


def test_a_worker_that_dies_in_the_middle_of_a_start_leaves_nothing(keeper):
    for _ in range(5):
        worker = start_in_a_worker(keeper.settings, "loop")
        assert eventually(lambda: keeper.client.status()["starts"] > 0)
        time.sleep(random.random() * 0.1)
        worker.kill()
        worker.wait(timeout=5)
        worker.stdout.close()
        assert eventually(lambda: keeper.client.list() == [])


def start_in_a_worker(settings: Settings, mode: str) -> subprocess.Popen[str]:
    code = """
import json, signal, sys
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
client, never = KeeperClient(Settings.from_env()), NeverCancelled()
while True:
    with client.begin(SandboxSpec(job_id="w", attempt=1), cancel=never, timeout=30) as starting:
        sandbox = starting.sandbox()
        if sys.argv[1] == "keep":
            starting.keep()
            sandbox.shell.run("owner=worker", timeout=5)
            print(json.dumps(sandbox.handle.to_json()), flush=True)
            signal.pause()
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRORL_")}
    return subprocess.Popen(
        [sys.executable, "-c", code, mode], env={**environment, **settings.to_env()}, stdout=subprocess.PIPE, text=True
    )


def test_what_a_killed_keeper_left_half_started_is_ended(keeper_settings):
    killed = []
    for n in range(8):
        with KeeperProcess(keeper_settings, boot=f"boot-{n}") as keeper, keeper.client._connect() as channel:
            keeper.client.start(spec(), cancel=(never := NeverCancelled()), timeout=30).close()
            never.close()
            wire.send(channel, {"op": "start", "spec": spec().to_json(), "timeout": 30})
            time.sleep(0.001 * n)
            keeper.kill()
            killed.append(keeper)
    with KeeperProcess(keeper_settings, boot="last"):
        assert eventually(lambda: not any(marked_processes(f"prorl-init-{k.process.pid}-") for k in killed))


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_when_a_keeper_has_ended_nothing_of_it_is_on_the_machine(keeper, never, how):
    """Killed with everything in use: its guard cleans up behind it. Stopped: it does so itself."""
    keeper.client.start(spec("b"), cancel=never, timeout=30).close()
    share = share_of(keeper)
    assert {thing.kind for thing in things_of(keeper, share)} >= {"process", "socket", "folder"}
    assert {thing.fate for thing in things_of(keeper, share)} == {"lives"}
    getattr(keeper, how)()
    assert eventually(lambda: things_of(keeper, share) == [] and not share.exists())
    assert list(keeper.settings.run_dir.glob("*/*")) == []


def test_a_keeper_whose_guard_was_killed_has_another(keeper, never):
    keeper.client.start(spec(), cancel=never, timeout=30).close()
    share, guard = share_of(keeper), guard_of(keeper)
    os.kill(guard, signal.SIGKILL)
    assert eventually(lambda: guard_of(keeper) not in (None, guard))
    keeper.kill()
    assert eventually(lambda: things_of(keeper, share) == [])


def test_what_keeper_and_guard_left_when_both_were_killed_the_next_keeper_removes(keeper_settings, never):
    with KeeperProcess(keeper_settings) as keeper:
        keeper.client.start(spec(), cancel=never, timeout=30).close()
        share = share_of(keeper)
        os.kill(guard_of(keeper), signal.SIGKILL)
        keeper.kill()
    assert "socket" in {thing.kind for thing in things_of(keeper, share) if thing.fate == "left"}
    with KeeperProcess(keeper_settings, boot="next"):
        # At once, unless another janitor of this machine is at it.
        assert eventually(lambda: not share.exists())
        assert {thing.fate for thing in things_of(keeper, share)} == {"lives"}


def test_a_second_keeper_for_a_node_ends_at_once_and_leaves_the_first_alone(keeper, never):
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30)
    with pytest.raises(KeeperLost):
        KeeperProcess(keeper.settings, boot="second")
    assert keeper.client.status()["boot"] == keeper.boot
    assert sandbox.shell.run("echo here", timeout=10).output == "here\n"
    sandbox.stop()


def test_what_a_keeper_in_a_container_owns_is_left_alone():
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"]
    places = {"ours": pid_namespace(), "another": pid_namespace() + 1}
    running = {
        where: subprocess.Popen([*sleep, f"prorl-init-{2**22 + 1}-1-{number}-{os.getuid()}"], stdout=subprocess.PIPE)
        for where, number in places.items()
    }
    for process in running.values():
        process.stdout.readline()
    try:
        clear_left(Settings())
        assert running["ours"].wait(10) == -signal.SIGKILL
        assert running["another"].poll() is None
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


@pytest.mark.parametrize("rounds", [4, pytest.param(25, marks=pytest.mark.slow)])
def test_a_keeper_that_is_killed_while_instances_start_leaves_none(keeper_settings, image, rounds):
    randomness = random.Random(rounds)
    for number in range(rounds):
        with KeeperProcess(keeper_settings, boot=f"boot-{number}") as keeper, NeverCancelled() as never:
            keeper.client.start(spec(image=image), cancel=never, timeout=60).close()
            with keeper.client._connect() as channel:
                wire.send(channel, {"op": "start", "spec": spec(image=image).to_json(), "timeout": 60})
                time.sleep(randomness.uniform(0.0, 0.4))
                keeper.kill()
        assert eventually(lambda keeper=keeper: of_a_start(keeper) == []), of_a_start(keeper)


def of_a_start(keeper: KeeperProcess) -> list[str]:
    """Processes that have to do with the keeper's instances, at whatever stage of their start."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if f"prorl-init-{keeper.process.pid}-".encode() in told:
                    found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
    return found
