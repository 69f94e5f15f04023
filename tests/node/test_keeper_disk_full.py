"""A disk that is full: starts that need some are refused with a typed error, everything else goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_help import eventually, spec, things_of

from prorl_celery.errors import SandboxError
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

SIZE = "48k"
"""Less than what a keeper copies for its sandboxes."""


@pytest.fixture
def full(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeeperProcess]:
    """A keeper whose TMPDIR is a tiny file system in a mount namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    disk = Path("/mnt")
    wrapper = tmp_path / "python"
    mount = f'mount -t tmpfs -o size={SIZE},mode=1777 tmpfs {disk} && exec {sys.executable} "$@"'
    wrapper.write_text(f"#!/bin/sh\nexec unshare -m sh -c '{mount}' python \"$@\"\n")
    wrapper.chmod(0o755)
    settings = Settings(run_dir=tmp_path / "run", node="n1", spare_sandboxes=0, allow_unsafe_local=True)
    with KeeperProcess(settings, program=str(wrapper), extra_env={"TMPDIR": str(disk)}) as keeper:
        yield keeper


def inside(keeper: KeeperProcess, command: str) -> None:
    subprocess.run(["nsenter", "-t", str(keeper.process.pid), "-m", "sh", "-c", command], check=True, timeout=60)


def test_a_start_is_refused_while_there_is_no_space_and_works_when_there_is_some(full, never, image):
    for changes in ({}, {"image": image}):
        with pytest.raises(SandboxError, match="No space left on device"):
            full.client.start(spec(**changes), cancel=never, timeout=60)
    assert full.client.status()["live"] == 0
    inside(full, "mount -o remount,size=64m /mnt")
    for changes in ({}, {"image": image}):
        full.client.start(spec(**changes), cancel=never, timeout=60).stop()
    assert [thing for thing in things_of(full) if thing.kind == "process"] == []


def test_a_disk_that_fills_up_hurts_no_sandbox_that_lives(full, never, image):
    inside(full, "mount -o remount,size=64m /mnt")
    lives = [full.client.start(spec(**changes), cancel=never, timeout=60) for changes in ({}, {"image": image})]
    inside(full, "cat /dev/zero >/mnt/fill 2>/dev/null || true")
    full.client.start(spec("needs-none"), cancel=never, timeout=60).stop()
    with pytest.raises(SandboxError, match="did not start"):
        full.client.start(spec("needs-some", image=image), cancel=never, timeout=60)
    for sandbox in lives:
        sandbox.files.write("/workspace/file", b"x" * 100_000)
        assert sandbox.shell.run("wc -c <file", timeout=20).output == "100000\n"
    assert eventually(lambda: full.client.status()["live"] == 2)
    for sandbox in lives:
        sandbox.stop()


def test_leaks_that_cannot_be_written_down_are_when_they_can(tmp_path: Path) -> None:
    settings = Settings(run_dir=tmp_path, node="n1")
    counter = LeakCounter(settings)
    counter.add(2)
    assert counter.value == 2, "there is no directory"
    (tmp_path / "n1" / "leaked").mkdir(parents=True)
    counter.add(1)
    assert (counter.value, LeakCounter(settings).value) == (3, 0)
    (tmp_path / "n1" / "leaked").rmdir()
    counter.add(0)
    assert LeakCounter(settings).value == 3
