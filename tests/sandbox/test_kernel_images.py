"""Kernels in images that have a Python of their own: it is theirs that runs; what is missing is said, with the cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernel_sandboxes import SECONDS, kernel_settings, skeleton_image

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox import packages
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.singularity import borrows_usr, command
from prorl_celery.settings import Settings

pytestmark = pytest.mark.skipif(
    command() is None,
    reason="no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it on Debian 12)",
)
OWN = "/opt/own"
PROGRAMS = ("bash", "cat", "env", "head", "mkdir", "mv", "readlink", "rm")


@pytest.fixture(scope="module")
def sandbox_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return kernel_settings(tmp_path_factory.mktemp("run"), sandbox_binds=("/usr",))


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """Its /usr counts as its own; what fills it is the machine's, bound there. Packages lie in a folder of its own."""
    with skeleton_image() as image:
        (image / "usr" / "bin").mkdir()
        for name in ("bash", "env", "sh", "python3"):
            (image / "usr" / "bin" / name).touch(mode=0o755)
        assert not borrows_usr(image)
        packages.publish(["ipykernel"], image / "opt")
        (image / "opt" / packages.PACKAGES).rename(image / OWN[1:])
        (image / "opt" / "few").mkdir()
        for name in PROGRAMS:
            (image / "opt" / "few" / name).symlink_to(f"/usr/bin/{name}")
        yield image


def start_in(image: Path, start: Callable[..., LiveSandbox], **env: str) -> LiveSandbox:
    return start(image=str(image), kernel=True, binds=("/usr:/usr",), env=env)


def test_an_image_with_ipykernel_runs_kernels_on_its_own(image: Path, start: Callable[..., LiveSandbox]):
    sandbox = start_in(image, start, PYTHONPATH=OWN)
    result = sandbox.kernel.run("import ipykernel, os; ipykernel.__file__, os.getcwd()", timeout=SECONDS)
    assert result.output == f"('{OWN}/ipykernel/__init__.py', '/workspace')\n"
    assert sandbox.shell.run("ls -d /opt/packages", timeout=SECONDS).exit_code != 0
    sandbox.kernel.restart()
    assert sandbox.kernel.run("!echo $((6 * 7))", timeout=SECONDS).output == "42\n"


def test_an_image_without_ipykernel_is_refused_with_the_cure(image: Path, start: Callable[..., LiveSandbox]):
    with pytest.raises(SandboxError, match="pip install ipykernel"):
        start_in(image, start)


def test_an_image_without_python_is_refused_with_the_cure(image: Path, start: Callable[..., LiveSandbox]):
    with pytest.raises(SandboxError, match="an image with Python and ipykernel"):
        start_in(image, start, PATH="/opt/few")


def test_a_kernel_that_cannot_start_says_why(image: Path, start: Callable[..., LiveSandbox]):
    broken = image / "opt" / "broken" / "zmq"
    broken.mkdir(parents=True, exist_ok=True)
    (broken / "__init__.py").write_text("raise ImportError('this is the wrong machine')\n")
    with pytest.raises(SandboxError, match="did not start: ImportError: this is the wrong machine"):
        start_in(image, start, PYTHONPATH=f"/opt/broken:{OWN}")
