"""What stands between us and spython, against the real program; and which program will do."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_images import needs_singularity

from prorl_celery.errors import BadImage, SandboxError, SandboxUnavailable
from prorl_celery.node.pause import until
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.launch import User, sandbox_user
from prorl_celery.sandbox.singularity import options, program
from prorl_celery.sandbox.singularity.inotify import await_file
from prorl_celery.sandbox.singularity.instances import Instances
from prorl_celery.sandbox.singularity.registry import Record, Registry, kill_recorded, read_record
from prorl_celery.sandbox.singularity.seal import NotSealed, seal
from prorl_celery.sandbox.singularity.starter import Starter
from prorl_celery.settings import Settings

SPEC = SandboxSpec(job_id="j", attempt=1)


class Desk:
    """A registry of its own, and its instances, each call in a process that becomes the sandbox user."""

    def __init__(self, folder: Path, image: str, user: User | None) -> None:
        self.user = user
        self.image = image
        self.program = program.find()
        self.registry = Registry(folder, "boot", user, self.program)
        self.instances = Instances(self.registry, user)
        self.options = [*options.start_options(self.program, SPEC), "--bind", "/usr:/usr:ro"]

    def call(self, function: Callable[[], Any]) -> Any:
        """What a function answers in such a process. Raises what it raises."""
        ours, theirs = multiprocessing.Pipe()
        child = os.fork()
        if child == 0:
            try:
                self.instances.become()
                theirs.send((function(), None))
            except (SandboxError, OSError) as error:
                theirs.send((None, error))
            finally:
                os._exit(0)
        theirs.close()
        answer, error = ours.recv() if ours.poll(60) else (None, TimeoutError())
        ours.close()
        os.waitpid(child, 0)
        if error is not None:
            raise error
        return answer

    def start(self, name: str, *more: str) -> int:
        pid = self.call(lambda: self.instances.start(self.image, name, [*self.options, *more]))
        assert isinstance(pid, int)
        return pid

    def listed(self) -> list[Record]:
        found: list[Record] = self.call(self.instances.listed)
        return found


@pytest.fixture(scope="module")
def desk(jail_parts) -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="prorl-test-desk-") as name:
        Path(name).chmod(0o755)
        made = Desk(Path(name), jail_parts.image, sandbox_user(Settings()))
        yield made
        kill_recorded(made.registry.path)


@needs_singularity
def test_an_instance_is_started_listed_and_stopped(desk):
    pid = desk.start("first")
    assert desk.listed() == [Record("first", pid)]
    assert [record for record in desk.registry.records() if record.lives] == [Record("first", pid)]
    desk.call(lambda: desk.instances.stop("first"))
    assert until(lambda: not Record("first", pid).lives, 30, every=0.02)
    assert until(lambda: desk.listed() == [], 30, every=0.1)
    desk.registry.forget("first")
    assert not list(desk.registry.path.glob("instances/logs/**/first.*"))


@needs_singularity
def test_an_instance_can_be_let_end_by_the_program(desk):
    pid = desk.start("patient")
    desk.call(lambda: desk.instances.stop("patient", patience_seconds=1))
    assert not Record("patient", pid).lives
    assert desk.listed() == []


@needs_singularity
def test_to_stop_what_is_not_there_is_no_error(desk):
    desk.call(lambda: desk.instances.stop("nobody"))


@needs_singularity
@pytest.mark.parametrize(
    ("image", "more"),
    [(None, ["--no-such-option"]), ("/no/such/image", []), (None, ["--bind", "/no/such/folder:/mnt"])],
)
def test_a_start_that_fails_is_an_error_and_no_instance_without_a_pid(desk, image, more):
    with pytest.raises(SandboxError, match="refused did not start"):
        desk.call(lambda: desk.instances.start(image or desk.image, "refused", [*desk.options, *more]))
    assert desk.listed() == []


@needs_singularity
def test_a_name_that_is_taken_is_an_error_and_leaves_its_owner_alone(desk):
    pid = desk.start("taken")
    with pytest.raises(SandboxError, match="taken did not start"):
        desk.start("taken")
    assert desk.listed() == [Record("taken", pid)]
    assert kill_recorded(desk.registry.path, "taken") == 1
    assert until(lambda: desk.listed() == [], 30, every=0.1)


@needs_singularity
def test_what_spython_answers_in_another_shape_is_understood_or_an_error(desk, monkeypatch):
    class Client:
        answer: Any = None

        def instances(self, **_: object) -> Any:
            return self.answer

        def instance(self, *_: object, **__: object) -> Any:
            raise SystemExit(1)

    instances = Instances(desk.registry, None)
    monkeypatch.setattr(instances, "_client", Client())
    for answer, means in (
        (None, []),
        ([], []),
        ([{"instance": "a", "pid": 7}], [Record("a", 7)]),
        ({"instances": [{"instance": "a", "pid": "7"}]}, [Record("a", 7)]),
    ):
        Client.answer = answer
        assert instances.listed() == means
    for nonsense in ([{"name": "a"}], ["text"], [{"instance": "a", "pid": "x"}], 7):
        Client.answer = nonsense
        with pytest.raises(SandboxError, match="could not be listed"):
            instances.listed()
    with pytest.raises(SandboxError, match="refused to start"):
        instances.start("image", "name", [])


@needs_singularity
def test_a_record_is_seen_while_its_start_still_runs(desk):
    def start() -> int:
        desk.instances.become()
        return desk.instances.start(desk.image, "early", desk.options)

    starter = Starter(start)
    record = desk.registry.await_record("early", until=starter.pipe, timeout=60)
    assert record is not None
    assert record.lives
    assert starter.result() == record.pid
    kill_recorded(desk.registry.path, "early")


@needs_singularity
def test_no_record_comes_of_a_start_that_fails(desk):
    def fail() -> int:
        raise BadImage("on purpose")

    starter = Starter(fail)
    assert desk.registry.await_record("never", until=starter.pipe, timeout=60) is None
    with pytest.raises(BadImage, match="on purpose"):
        starter.result()


@needs_singularity
def test_only_an_instance_in_a_user_namespace_of_its_own_can_be_sealed(desk):
    with pytest.raises(NotSealed, match="without user namespaces"):
        seal(os.getpid(), 1 << 20, None, online=False)
    with pytest.raises(SandboxError, match="No such file"):
        seal(2**22 + 1, 1 << 20, None, online=False)


def test_a_file_is_awaited_from_before_its_folder_is_there(tmp_path):
    silent, _keep = os.pipe()
    wanted = tmp_path / "folder" / "file"

    def read(path: Path) -> str | None:
        return path.read_text() if path.exists() and path.read_text() else None

    assert await_file(wanted, read, until=silent, timeout=0.05) is None
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
        wanted.parent.mkdir()
        wanted.touch()
        time.sleep(0.1)
        wanted.write_text("there")
        os._exit(0)
    assert await_file(wanted, read, until=silent, timeout=60) == "there"
    os.waitpid(child, 0)
    os.close(_keep)
    assert await_file(tmp_path / "folder" / "other", read, until=silent, timeout=60) is None, "given up with its maker"
    os.close(silent)


def test_a_record_that_is_half_written_or_somebody_elses_is_none(tmp_path):
    path = tmp_path / "name.json"
    for text in ("", '{"pid": 1', "[]", '{"pid": "x", "name": "n"}'):
        path.write_text(text)
        assert read_record(path) is None
    path.write_text(f'{{"pid": {os.getpid()}, "name": "n"}}')
    assert read_record(path) is None, "that process is no instance"
    assert read_record(path, living=False) == Record("n", os.getpid())
    folder = tmp_path / "instances/app/host/user/name"
    folder.mkdir(parents=True)
    shutil.copy(path, folder)
    assert kill_recorded(tmp_path) == 0


@pytest.mark.parametrize(
    ("said", "product", "version"),
    [
        ("apptainer version 1.4.5", "apptainer", (1, 4)),
        ("apptainer version 1.2.0-1.el9", "apptainer", (1, 2)),
        ("singularity-ce version 3.11.4-focal", "singularity-ce", (3, 11)),
        ("singularity-ce version 4.2.2", "singularity-ce", (4, 2)),
        ("SingularityPRO version 4.1.3-1", "singularity-pro", (4, 1)),
    ],
)
def test_the_versions_that_will_do_are_known(said, product, version):
    assert program.read_version(said) == (product, version)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("apptainer version 1.1.9", "too old"),
        ("singularity-ce version 3.10.5", "too old"),
        ("singularity version 3.8.7-1.el8", "too old"),
        ("2.6.1-dist", "tells no version"),
        ("", "tells no version"),
    ],
)
def test_a_version_that_is_too_old_or_unknown_says_what_to_take(said, says):
    with pytest.raises(SandboxUnavailable, match=says):
        program.read_version(said)


@pytest.mark.parametrize("name", ["singularity", "apptainer"])
def test_either_command_is_found_and_asked_for_its_version(monkeypatch, tmp_path, name):
    path = tmp_path / name
    path.write_text("#!/bin/sh\necho apptainer version 1.3.1\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = program.find()
    assert (found.path, found.product, found.version) == (str(path), "apptainer", (1, 3))


@pytest.mark.parametrize(("script", "says"), [("exit 3", "failed with 3"), ("echo hello", "tells no version")])
def test_a_program_that_does_not_work_says_so(monkeypatch, tmp_path, script, says):
    path = tmp_path / "singularity"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=says):
        program.find()
    path.unlink()
    with pytest.raises(SandboxUnavailable, match="on the PATH"):
        program.find()


def test_spython_finds_the_program_by_whatever_name_it_has(tmp_path):
    real = tmp_path / "opt" / "apptainer"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\necho "called $*"\n')
    real.chmod(0o755)
    found = program.Program(path=str(real), product="apptainer", version=(1, 4), said="apptainer version 1.4.5")
    registry = Registry(tmp_path, "boot", None, found)
    stand_in = registry.path / "bin" / "singularity"
    assert stat.S_IMODE(registry.path.stat().st_mode) == 0o700
    assert registry.spython_environment()["PATH"].startswith(f"{stand_in.parent}:")
    for arguments, says in (
        (["--version"], "apptainer version 1.4.5\n"),
        (["instance", "list"], "called instance list\n"),
    ):
        done = subprocess.run([stand_in, *arguments], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == says
