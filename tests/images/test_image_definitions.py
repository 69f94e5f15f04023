"""The definition files that ship, built from the mirror and used: a shell, pytest and a kernel in a sandbox."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from prorl_celery.images import definition
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

DEPLOY = Path(__file__).parents[2] / "deploy" / "images"
KERNEL = """
from jupyter_client import KernelManager
manager = KernelManager(transport="ipc")
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
reply = client.execute_interactive("import numpy, scipy, sympy; print(numpy.arange(4).sum())", timeout=60)
print(reply["content"]["status"])
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


@pytest.mark.parametrize("name", ["debian", "python"])
def test_they_can_be_read_and_name_no_registry_of_ours(name):
    found = definition.read(DEPLOY / f"{name}.def", {})
    assert len(found.bases) == 1
    assert "http" not in found.text


def test_a_registrys_base_is_an_argument_away():
    given = {"BOOTSTRAP": "docker", "BASE": "debian:bookworm-slim"}
    assert str(definition.read(DEPLOY / "python.def", given).bases[0]) == "docker:debian:bookworm-slim"


@pytest.mark.slow
@pytest.mark.skipif(singularity.command() is None, reason="no singularity or apptainer on the PATH")
@pytest.mark.skipif(
    shutil.which("debootstrap", path="/usr/sbin:" + os.environ["PATH"]) is None, reason="no debootstrap"
)
def test_the_python_image_has_pytest_and_a_kernel(place, tmp_path):
    told = place.run("build", DEPLOY / "python.def", timeout=1800.0)
    assert told.returncode == 0, told.stderr
    assert place.listing() == ["debian", "debian.json", "python", "python.json"]
    settings = Settings(run_dir=tmp_path / "run", node="n1")
    spec = SandboxSpec(job_id="j", attempt=1, image=str(place.images / "python"))
    with KeeperProcess(settings) as keeper, NeverCancelled() as never:
        sandbox = keeper.client.start(spec, cancel=never, timeout=120.0)
        sandbox.files.write("/workspace/kernel.py", KERNEL.encode())
        sandbox.files.write("/workspace/test_one.py", b"def test_one():\n    assert 1 + 1 == 2\n")
        assert sandbox.shell.run("git --version", timeout=60).output.startswith("git version")
        assert "1 passed" in sandbox.shell.run("python3 -m pytest -q", timeout=120).output
        assert "6\nok\n" in sandbox.shell.run("python3 kernel.py 2> /dev/null", timeout=180).output
        sandbox.stop()
