"""What is left over on a machine is found by its label or its lock, and removed; what is anybody's is not touched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keeper_help import eventually

from prorl_celery import folders
from prorl_celery.node.janitor import processes, things
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.node.janitor.leftovers import UNLISTED_SECONDS, Leftovers
from prorl_celery.node.janitor.removal import clear_left, remove
from prorl_celery.node.janitor.thing import Thing
from prorl_celery.node.places import locked
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.sandbox.owner import VARIABLE, Owner, pid_namespace, start_time
from prorl_celery.settings import Settings

NOBODY = 2**22 + 1
"""A pid that no process has."""
USER = 4_000_000_000
"""A user that nobody is: other janitors of this machine are not to find what these tests leave about."""
SLEEP = "import time; print(flush=True); time.sleep(1000)"

Run = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run() -> Iterator[Run]:
    """Starts processes that sleep, and ends them."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", SLEEP, *arguments], stdout=subprocess.PIPE, env={**os.environ, **environment}
        )
        running.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a service in a folder of its own, on a machine that has no other's."""
    monkeypatch.setattr(things, "temporary", lambda: [tmp_path / "tmp"])
    monkeypatch.setattr(processes, "this_user", lambda: USER)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "run" / "n1").mkdir(parents=True)
    return Settings(run_dir=tmp_path / "run", node="n1")


def label(**changes: int) -> str:
    me = Owner(os.getpid(), start_time(os.getpid()) or 0, pid_namespace(), USER)
    fields = {"pid": me.pid, "start": me.start, "namespace": me.namespace, "uid": me.uid, **changes}
    return f"prorl-init-{Owner(**fields)}"


def removed(settings: Settings) -> set[str]:
    """What is removed; but for control groups, which other tests may have left at the same time."""
    gone = {removal.thing.name for removal in clear_left(settings) if removal.outcome == "removed"}
    return {name for name in gone if not name.startswith("/sys/fs/cgroup")}


def test_processes_of_a_dead_keeper_are_ended_however_they_are_labelled(settings: Settings, run: Run) -> None:
    dead = label(pid=NOBODY)
    labelled = [run(dead), run(**{VARIABLE: f"{dead}:nonce"}), run(label(start=1))]
    clear_left(settings)
    assert [process.wait(10) for process in labelled] == [-signal.SIGKILL] * 3


def test_processes_of_a_living_keeper_of_another_user_or_of_a_container_are_left_alone(
    settings: Settings, run: Run
) -> None:
    others = [
        run(label()),
        run(label(pid=NOBODY, uid=USER + 1)),
        run(label(pid=NOBODY, namespace=pid_namespace() + 1)),
        run("anywhere", label(pid=NOBODY)),
        run(SOMETHING=label(pid=NOBODY)),
    ]
    clear_left(settings)
    assert [process.poll() for process in others] == [None] * len(others)


def test_a_process_that_got_the_pid_of_one_that_was_found_is_left_alone(run: Run) -> None:
    other = run()
    found = Thing("process", str(other.pid), "left", Owner(NOBODY, 1, pid_namespace(), USER))
    assert remove([found]) == []
    assert other.poll() is None


def test_a_kill_that_fails_is_told_and_tried_again_at_the_next_round(settings: Settings, run: Run) -> None:
    process = run(label(pid=NOBODY))

    def refuse(pidfd: int, number: int) -> None:
        raise PermissionError("not today")

    (found,) = [thing for thing in things.inventory(settings) if thing.name == str(process.pid)]
    (failed,) = remove([found], kill=refuse)
    assert (failed.outcome, failed.why) == ("failed", "not today")
    (again,) = [thing for thing in things.inventory(settings) if thing.name == str(process.pid)]
    (ended,) = remove([again])
    assert (ended.outcome, process.wait(10)) == ("removed", -signal.SIGKILL)


def test_a_folder_without_a_lock_goes_and_one_with_a_lock_stays(settings: Settings) -> None:
    place = things.temporary()[0]
    ours = folders.make(place, "share")
    with_an_owner_that_died = subprocess.run(
        [sys.executable, "-c", "import sys; from pathlib import Path; from prorl_celery import folders\n"
         "folder = folders.make(Path(sys.argv[1]), 'share'); (folder.path / 'x').write_text('y'); print(folder.path)\n"
         "import os; os._exit(0)", str(place)], capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    (place / "prorl-share-somebody").mkdir()
    (place / "somebody").mkdir()
    (place / f"prorl-share-{os.geteuid()}-0123abcd").symlink_to(place / "somebody")
    assert removed(settings) == {with_an_owner_that_died}
    assert ours.path.is_dir()
    assert {path.name for path in place.iterdir()} >= {"prorl-share-somebody", "somebody"}
    ours.close()
    assert not ours.path.exists()


def test_a_folder_whose_service_has_outlived_its_owner_stays_until_that_has_ended(settings: Settings) -> None:
    left = things.temporary()[0] / f"prorl-bench-{os.geteuid()}-0123abcd"
    left.mkdir()
    with locked(left / "lock", "the data"):
        assert removed(settings) == set()
    assert removed(settings) == {str(left)}


def test_nothing_is_removed_through_a_mount(settings: Settings, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts a folder")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    left = things.temporary()[0] / f"prorl-share-{os.geteuid()}-0123abcd"
    (left / "mounted").mkdir(parents=True)
    subprocess.run(["mount", "--bind", precious, left / "mounted"], check=True)
    assert {removal.thing.kind for removal in clear_left(settings)} - {"group"} == {"mount", "folder"}
    assert not left.exists()
    assert (precious / "file").exists()


def test_a_socket_goes_when_nobody_has_its_folder_and_nobody_listens(settings: Settings) -> None:
    place = settings.run_dir / settings.node
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead, socket.socket(socket.AF_UNIX) as alive:
        dead.bind(str(place / "keeper.sock"))
        dead.close()
        alive.bind(str(place / "alive.sock"))
        alive.listen()
        lock = folders.hold(place, 0.0)
        assert lock is not None
        assert removed(settings) == set()
        os.close(lock)
        assert removed(settings) == {str(place / "keeper.sock")}
    assert (place / "alive.sock").exists()


def test_the_directory_of_a_service_that_was_killed_goes_and_that_of_one_that_lives_stays(settings: Settings) -> None:
    place = things.temporary()[0]
    run_dirs = {name: place / f"prorl-{os.geteuid()}-{digit * 10}" for name, digit in
                (("dead", "a"), ("lives", "b"), ("young", "c"), ("keeper lives", "d"))}  # fmt: skip
    for run_dir in run_dirs.values():
        (run_dir / "n1").mkdir(parents=True)
        os.utime(run_dir, (1, 1))
    run_dirs["young"].touch()
    locks = [folders.hold(run_dirs["lives"], 0.0), folders.hold(run_dirs["keeper lives"] / "n1", 0.0)]
    assert removed(settings) == {str(run_dirs["dead"])}
    for lock in locks:
        os.close(lock)


def test_a_folder_that_waits_for_its_owner_gets_it_when_the_janitor_has_looked(tmp_path: Path) -> None:
    """The janitor locks a folder while it removes it; whoever wants it meanwhile makes it anew."""
    path = tmp_path / "run"
    lock = folders.hold(path, 0.0)
    held: list[int | None] = []
    waiting = threading.Thread(target=lambda: held.append(folders.hold(path, 30.0)))
    waiting.start()
    assert eventually(lambda: waiting.is_alive())
    path.rmdir()
    os.close(lock)
    waiting.join(30)
    assert path.is_dir()
    assert folders.is_held(path)
    os.close(held[0])


class Keeper:
    """Says that this process is the keeper, and lists what it is told to."""

    listed: list[dict[str, object]] = []

    def status(self) -> dict[str, int]:
        return {"pid": os.getpid()}

    def list(self, *, spares: bool) -> list[dict[str, object]]:
        assert spares
        return self.listed


def test_a_sandbox_that_a_living_keeper_has_lost_sight_of_is_ended_when_it_was_seen_twice(
    settings: Settings, run: Run
) -> None:
    keeper, now = Keeper(), 0.0
    leftovers = Leftovers(settings, keeper, clock=lambda: now)  # type: ignore[arg-type]
    process = run(label())
    keeper.listed = [{"sandbox_id": "s1-a", "pid": os.getsid(process.pid), "starter": None}]
    for moment in (0.0, UNLISTED_SECONDS + 1.0):
        now = moment
        leftovers.sweep()
    assert process.poll() is None, "it is listed"
    keeper.listed = []
    leftovers.sweep()
    assert process.poll() is None, "it may be starting, or have just ended"
    now += UNLISTED_SECONDS + 1.0
    leftovers.sweep()
    assert process.wait(10) == -signal.SIGKILL
    assert LeakCounter(settings).value == 1


def test_sandboxes_that_are_found_are_counted_once_each_for_all_who_find_some(settings: Settings, run: Run) -> None:
    session = [run(label(pid=NOBODY)), run(label(pid=NOBODY))]
    nobody = KeeperClient(settings)
    for count in (1, 2):
        Leftovers(settings, nobody).sweep()
        assert LeakCounter(settings).value == count
        session = [run(label(pid=NOBODY))]
    assert len(session) == 1
