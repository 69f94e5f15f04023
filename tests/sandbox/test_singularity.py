"""Singularity sandboxes on a real Apptainer: the session, its end, and what a killed keeper leaves."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from sandbox_images import needs_singularity

from prorl_celery.errors import BadImage, SandboxError, SandboxUnavailable
from prorl_celery.sandbox import owner
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.launch import choose_kind
from prorl_celery.sandbox.singularity.options import ENTRIES
from prorl_celery.sandbox.singularity.registry import records_in
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess


@pytest.fixture(scope="module")
def image(jail_parts) -> str:
    """A skeleton that belongs to the sandbox user."""
    return str(jail_parts.image)


def instance_processes(keeper: KeeperProcess) -> list[str]:
    """Titles of the processes that hold instances of a keeper's, living or not."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            title = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
        except OSError:
            continue
        if " instance: " in title and f"[prorl-init-{keeper.process.pid}-" in title:
            found.append(title)
    return found


def gone(keeper: KeeperProcess, seconds: float = 30.0) -> bool:
    """Whether a keeper's instances go."""
    deadline = time.monotonic() + seconds
    while instance_processes(keeper) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not instance_processes(keeper)


@needs_singularity
def test_an_image_gets_a_shell_files_and_no_network(start, image):
    sandbox = start(image=image)
    assert sandbox.handle.kind == "singularity"
    seen = sandbox.shell.run("x=1; echo $PWD $HOME; tail -n +3 /proc/net/dev | cut -d: -f1; env", timeout=20).output
    assert seen.startswith("/workspace /home/agent\n    lo\n")
    for told in ("do-not-tell", "APPTAINER", "SINGULARITY", image):
        assert told not in seen
    assert sandbox.shell.run("grep CapEff /proc/self/status", timeout=5).output == "CapEff:\t0000000000000000\n"
    sandbox.files.write("/workspace/a/b", b"\0bytes")
    assert sandbox.files.read("/workspace/a/b") == b"\0bytes"
    assert sandbox.files.listing("/workspace") == ["a/", "a/b"]
    assert sandbox.shell.run("touch /usr/x /etc/shadow2", timeout=5).exit_code != 0 or os.geteuid() != 0


@needs_singularity
def test_what_the_program_brings_along_from_the_host_is_covered(start, image):
    sandbox = start(image=image)
    assert sandbox.shell.run("cat /proc/1/environ /etc/resolv.conf; ls /sys", timeout=5).output == ""
    assert sandbox.shell.run("hostname", timeout=5).output == "sandbox\n"


@needs_singularity
def test_the_session_survives_exit_kill_and_time_outs(start, image):
    sandbox = start(image=image)
    assert sandbox.shell.run("exit 3", timeout=5).exit_code == 3
    assert sandbox.shell.run("kill -9 $$", timeout=5).shell_restarted
    assert sandbox.shell.run("sleep 100", timeout=0.3).timed_out
    assert sandbox.shell.run("trap '' INT; while :; do :; done", timeout=0.3).timed_out
    assert sandbox.shell.run("echo here", timeout=5).output.split() == ["here"]


@needs_singularity
def test_the_session_survives_an_agent_that_kills_everything_it_can(start, image):
    sandbox = start(image=image)
    for _ in range(3):
        sandbox.shell.run("(setsid sleep 1000 &); kill -9 -1; sleep 60", timeout=30)
        sandbox.files.write("/workspace/x", b"1")
        assert sandbox.shell.run("cat /workspace/x", timeout=10).output == "1"
    assert "sleep" not in sandbox.shell.run("ps -ef", timeout=10).output


@pytest.mark.slow
@needs_singularity
def test_an_agent_that_goes_on_killing_everything_ends_its_sandbox_and_hangs_nobody(start, image):
    sandbox = start(image=image)

    def go_on() -> None:
        for _ in range(ENTRIES + 1):
            sandbox.shell.run("kill -9 -1; sleep 60", timeout=30)

    with pytest.raises(SandboxError):
        go_on()


@needs_singularity
def test_another_process_attaches_and_a_stop_leaves_nothing(start, keeper, image, cancel):
    sandbox = start(image=image)
    sandbox.shell.run("x=kept; (setsid sleep 1000 &)", timeout=5)
    sandbox.close()
    again = keeper.client.attach(sandbox.handle, cancel=cancel)
    assert again.shell.run("echo $x", timeout=5).output == "kept\n"
    again.stop()
    assert gone(keeper)


@needs_singularity
def test_sixteen_starts_at_once_work_and_the_keeper_answers_meanwhile(keeper, image):
    def begin(number: int) -> str:
        spec = SandboxSpec(job_id=f"j{number}", attempt=1, purpose="eval", image=image)
        with NeverCancelled() as never:
            sandbox = keeper.client.start(spec, cancel=never, timeout=120)
        said = sandbox.shell.run(f"echo {number}", timeout=60).output
        sandbox.stop()
        return said

    with ThreadPoolExecutor(16) as pool:
        starts = [pool.submit(begin, number) for number in range(16)]
        while not all(start.done() for start in starts):
            asked = time.monotonic()
            keeper.client.status(timeout=60)
            assert time.monotonic() - asked < 30, "an answer needs no instance to be started first"
            time.sleep(0.05)
    assert [start.result() for start in starts] == [f"{number}\n" for number in range(16)]
    assert gone(keeper)


@needs_singularity
def test_an_instance_is_named_after_its_keeper_node_job_and_attempt(keeper, start, image):
    sandbox = start(image=image, job_id="a/job of-mine", attempt=3)
    name = instance_processes(keeper)[0].partition("[")[2].rstrip("]")
    assert name.endswith(f".n1.a_job_of-mine.3.{sandbox.handle.sandbox_id}")
    found = owner.owner_in(name.encode())
    assert found is not None
    assert (found.pid, found.fate) == (keeper.process.pid, "lives")


@needs_singularity
def test_a_job_that_is_called_like_a_label_is_not_taken_for_one(keeper, start, image):
    start(image=image, job_id="prorl-init-1-2-3-4")
    found = owner.owner_in(instance_processes(keeper)[0].encode())
    assert found is not None
    assert found.pid == keeper.process.pid


@needs_singularity
@pytest.mark.parametrize("missing", ["/no/such/image", "/usr/share"])
def test_an_image_that_is_none_says_so_and_leaves_nothing(start, keeper, missing):
    with pytest.raises(BadImage, match=missing):
        start(image=missing)
    assert keeper.client.list() == []


@needs_singularity
def test_a_start_given_up_half_way_leaves_nothing(keeper, image):
    for patience in (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4):
        spec = SandboxSpec(job_id="j", attempt=1, image=image)
        with NeverCancelled() as never, suppress(SandboxError):
            keeper.client.start(spec, cancel=never, timeout=patience).stop()
    deadline = time.monotonic() + 60
    while keeper.client.status()["live"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert keeper.client.status()["live"] == 0
    assert gone(keeper)


@needs_singularity
@pytest.mark.parametrize("half_way", [False, True])
def test_a_killed_keeper_takes_its_instances_with_it(tmp_path, image, half_way):
    with KeeperProcess(Settings(run_dir=tmp_path, node="n2")) as keeper, NeverCancelled() as never:
        keeper.client.start(SandboxSpec(job_id="j", attempt=1, image=image), cancel=never, timeout=60).close()
        assert instance_processes(keeper)
        if half_way:
            with pytest.raises(SandboxError):
                keeper.client.start(SandboxSpec(job_id="k", attempt=1, image=image), cancel=never, timeout=0.1)
        keeper.kill()
        assert gone(keeper)


@needs_singularity
def test_a_keepers_registry_tells_whose_its_instances_are(image):
    with tempfile.TemporaryDirectory(prefix="prorl-test-registry-") as folder:
        Path(folder).chmod(0o755)
        with KeeperProcess(Settings(run_dir=Path(folder), node="n3")) as keeper, NeverCancelled() as never:
            sandbox = keeper.client.start(SandboxSpec(job_id="j", attempt=1, image=image), cancel=never, timeout=60)
            registries = [
                *Path(folder).glob("*/prorl-share-*/instances-*"),
                *Path(tempfile.gettempdir()).glob("prorl-share-*/instances-*"),
            ]
            mine = [path for path in registries if str(keeper.process.pid) in (path / "owner").read_text()]
            records = [record for path in mine for record in records_in(path)]
            assert [record.lives for record in records] == [True]
            assert records[0].name.endswith(sandbox.handle.sandbox_id)
            sandbox.stop()
            assert gone(keeper)
        assert not any(path.exists() for path in mine)


@pytest.mark.parametrize(
    ("changes", "setting", "has", "kind"),
    [
        ({}, "auto", True, "bubblewrap"),
        ({"image": "/x"}, "auto", True, "singularity"),
        ({"image": "/x"}, "singularity", True, "singularity"),
        ({}, "bubblewrap", True, "bubblewrap"),
        ({"kind": "bubblewrap"}, "singularity", True, "bubblewrap"),
    ],
)
def test_the_kind_is_chosen_by_the_spec_then_the_setting_then_the_image(changes, setting, has, kind):
    spec = SandboxSpec(job_id="j", attempt=1, **changes)
    assert choose_kind(spec, Settings(sandbox=setting), has_singularity=lambda: has) == kind


def test_an_image_without_singularity_says_how_to_get_it():
    spec = SandboxSpec(job_id="j", attempt=1, image="/x")
    with pytest.raises(SandboxUnavailable, match="install_apptainer"):
        choose_kind(spec, Settings(), has_singularity=lambda: False)
