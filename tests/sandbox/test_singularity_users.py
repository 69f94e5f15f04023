"""Instances of a keeper that root runs and of one that an ordinary user runs behave alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jails import Jail
from sandbox_images import build, make_small, needs_singularity

from prorl_celery.errors import SandboxError

pytestmark = [
    needs_singularity,
    pytest.mark.parametrize("jail", ["singularity-root", "singularity-user"], indirect=True),
]
MB = 1 << 20


@pytest.fixture(scope="module")
def file(jail_parts) -> str:
    folder = Path(jail_parts.folder)
    made = make_small(folder / "for-users")
    return build(folder / "for-users.sif", Path(made), "--mksquashfs-args", "-comp zstd -Xcompression-level 1")


def test_the_sandbox_is_the_ordinary_users_on_the_host_and_inside(jail: Jail):
    mine = jail.sandbox.handle.sandbox_id
    pid = next(entry["pid"] for entry in jail.keeper.client.list() if entry["sandbox_id"] == mine)
    uid = Path(f"/proc/{pid}").stat().st_uid
    assert uid != 0
    assert jail.output("id -u") == f"{uid}\n"


def test_an_image_file_starts_several_times_at_once_and_its_files_are_the_agents(jail: Jail, file):
    def begin(number: int) -> str:
        sandbox = jail.start(image=file, job_id=f"file-{number}", purpose="eval")
        said = sandbox.shell.run("cat /opt/data/file; rm /opt/data/file && ls /opt/data", timeout=60).output
        sandbox.stop()
        return said

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(begin, range(4))) == ["of the image\n"] * 4


def test_the_size_bounds_every_place(jail: Jail):
    sandbox = jail.start(disk_bytes=8 * MB)
    script = """
        for place in /tmp /dev/shm /home/agent / /workspace; do head -c 8M /dev/zero >$place/fill 2>/dev/null; done
        cat /tmp/fill /dev/shm/fill /home/agent/fill /fill /workspace/fill | wc -c"""
    assert 6 * MB < int(sandbox.shell.run(script, timeout=60).output) <= 8 * MB
    sandbox.stop()


def test_the_session_survives_an_agent_that_kills_everything(jail: Jail):
    sandbox = jail.start()
    sandbox.shell.run("kill -9 -1; sleep 60", timeout=30)
    assert sandbox.shell.run("echo here", timeout=20).output == "here\n"
    sandbox.stop()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fakeroot": True}, "PRORL_SANDBOX_FAKEROOT"),
        ({"network": "bridge"}, "PRORL_SANDBOX_NETWORKS"),
        ({"binds": ("/etc:/mnt",)}, "PRORL_SANDBOX_BINDS"),
        ({"image": "/etc"}, "no image"),
    ],
)
def test_what_the_node_does_not_allow_is_refused_by_its_setting(jail: Jail, changes, says):
    before = len(jail.keeper.client.list())
    with pytest.raises(SandboxError, match=says):
        jail.start(**changes)
    assert len(jail.keeper.client.list()) == before
