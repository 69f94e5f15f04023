"""Singularity sandboxes on a real Apptainer, with the skeleton image."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from prorl_celery.errors import SandboxError, SandboxUnavailable
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.launch import choose_kind
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

needs_singularity = pytest.mark.skipif(
    singularity.command() is None,
    reason="no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it on Debian 12)",
)
SKELETON = Path(__file__).parents[2] / "deploy" / "images" / "make_skeleton.sh"


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """In a folder that the sandbox user can reach, which pytest's are not."""
    folder = tempfile.mkdtemp(prefix="prorl-test-image-")
    Path(folder).chmod(0o755)
    subprocess.run([SKELETON, f"{folder}/skeleton"], check=True, timeout=60)
    yield f"{folder}/skeleton"
    shutil.rmtree(folder)


def instance_processes() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text().strip() in singularity.INIT_NAMES:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@needs_singularity
def test_an_image_gets_a_shell_files_and_no_network(start, image):
    sandbox = start(image=image)
    assert sandbox.handle.kind == "singularity"
    seen = sandbox.shell.run("x=1; echo $PWD $HOME; tail -n +3 /proc/net/dev | cut -d: -f1; env", timeout=20).output
    assert seen.startswith("/workspace /home/agent\n    lo\n")
    assert "do-not-tell" not in seen
    assert sandbox.shell.run("grep CapEff /proc/self/status", timeout=5).output == "CapEff:\t0000000000000000\n"
    sandbox.files.write("/workspace/a/b", b"\0bytes")
    assert sandbox.files.read("/workspace/a/b") == b"\0bytes"
    assert sandbox.files.listing("/workspace") == ["a/", "a/b"]
    assert sandbox.shell.run("touch /usr/x /etc/shadow2", timeout=5).exit_code != 0 or os.geteuid() != 0


@needs_singularity
def test_the_session_survives_exit_kill_and_time_outs(start, image):
    sandbox = start(image=image)
    assert sandbox.shell.run("exit 3", timeout=5).exit_code == 3
    assert sandbox.shell.run("kill -9 $$", timeout=5).shell_restarted
    assert sandbox.shell.run("sleep 100", timeout=0.3).timed_out
    assert sandbox.shell.run("trap '' INT; while :; do :; done", timeout=0.3).timed_out
    assert sandbox.shell.run("echo here", timeout=5).output == "here\n"


@needs_singularity
def test_another_process_attaches_and_a_stop_leaves_nothing(start, keeper, image, cancel):
    before = set(instance_processes())
    sandbox = start(image=image)
    sandbox.shell.run("x=kept; (setsid sleep 1000 &)", timeout=5)
    sandbox.close()
    again = keeper.client.attach(sandbox.handle, cancel=cancel)
    assert again.shell.run("echo $x", timeout=5).output == "kept\n"
    started = time.monotonic()
    again.stop()
    assert time.monotonic() - started < 5
    assert set(instance_processes()) <= before


@needs_singularity
def test_the_session_survives_an_agent_that_kills_everything_it_can(start, image):
    sandbox = start(image=image)
    for _ in range(3):
        sandbox.shell.run("(setsid sleep 1000 &); kill -9 -1; sleep 1; kill -9 $$", timeout=10)
        sandbox.files.write("/workspace/x", b"1")
        assert sandbox.shell.run("cat /workspace/x", timeout=10).output == "1"
    assert "sleep" not in sandbox.shell.run("ps -ef", timeout=10).output


@needs_singularity
@pytest.mark.parametrize("missing", ["/no/such/image", "/usr/share"])
def test_an_image_that_is_none_says_so_and_leaves_nothing(start, keeper, missing):
    with pytest.raises(SandboxError):
        start(image=missing)
    assert keeper.client.list() == []


@needs_singularity
def test_a_start_given_up_half_way_leaves_nothing(keeper, image):
    before = set(instance_processes())
    for patience in (0.0, 0.05, 0.1, 0.2, 0.3, 0.4):
        spec = SandboxSpec(job_id="j", attempt=1, image=image)
        with NeverCancelled() as never, suppress(SandboxError):
            keeper.client.start(spec, cancel=never, timeout=patience).stop()
    deadline = time.monotonic() + 30
    while keeper.client.status()["live"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert keeper.client.status()["live"] == 0
    assert set(instance_processes()) <= before


@needs_singularity
@pytest.mark.parametrize("half_way", [False, True])
def test_a_killed_keeper_takes_its_instances_with_it(tmp_path, image, half_way):
    before = set(instance_processes())
    settings = Settings(run_dir=tmp_path, node="n2")
    with KeeperProcess(settings) as keeper, NeverCancelled() as never:
        keeper.client.start(SandboxSpec(job_id="j", attempt=1, image=image), cancel=never, timeout=30).close()
        assert set(instance_processes()) != before
        if half_way:
            with pytest.raises(SandboxError):
                keeper.client.start(SandboxSpec(job_id="k", attempt=1, image=image), cancel=never, timeout=0.1)
        keeper.kill()
    deadline = time.monotonic() + 10
    while set(instance_processes()) != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert set(instance_processes()) <= before


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
