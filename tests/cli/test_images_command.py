"""`prorl images`: what it prints and how it fails. What it makes is tested in tests/images."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_root import make_borrowing_root
from test_commands import prorl

from prorl_celery.cli.main import cli
from prorl_celery.errors import ProrlError
from prorl_celery.sandbox import singularity

pytestmark = pytest.mark.skipif(
    singularity.command() is None,
    reason="no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it on Debian 12)",
)


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory that the sandbox user can reach, which pytest's are not."""
    folder = Path(tempfile.mkdtemp(prefix="prorl-test-images-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_an_image_is_built_listed_checked_and_removed(data, tmp_path):
    tree = make_borrowing_root(tmp_path / "plain")
    built = prorl("images", "build", str(tree), PRORL_DATA_DIR=str(data))
    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith(f"{data}/images/plain: made in ")
    assert built.stderr == f"making plain; log: {data}/logs/images/plain.log\n"
    (data / "images/other").mkdir()
    told = prorl("images", "list", PRORL_DATA_DIR=str(data)).stdout.splitlines()
    assert told[0].split("\t") == ["name", "kind", "size", "made", "state"]
    assert told[1].split("\t")[:2] == ["other", "folder"]
    assert "is a folder but no image" in told[1]
    assert told[2].startswith("plain\tfolder\t")
    assert told[2].endswith("\tready")
    both = prorl("images", "check", "plain", "other", PRORL_DATA_DIR=str(data))
    assert both.returncode == 1
    assert both.stdout == f"{data}/images/plain: starts\n"
    assert "no image" in both.stderr
    assert prorl("images", "rm", "plain", "other", PRORL_DATA_DIR=str(data)).returncode == 0
    assert [path.name for path in (data / "images").iterdir() if path.name[0] != "."] == []


def test_images_are_kept_where_one_says(data, tmp_path):
    tree = make_borrowing_root(tmp_path / "plain")
    environ = {"PRORL_DATA_DIR": str(tmp_path), "PRORL_IMAGES_DIR": str(data / "one")}
    assert prorl("images", "build", str(tree), **environ).returncode == 0
    assert prorl("images", "build", str(tree), "--out", str(data / "two"), **environ).returncode == 0
    assert (data / "one/plain").is_dir()
    assert (data / "two/plain").is_dir()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("build", "/no/such"), "there is no /no/such"),
        (("build", "/etc", "--name", "A B"), "'A B' is no image name"),
        (("build", "/etc", "/usr", "--name", "x"), "--name is for one target"),
        (("build", "/etc/hosts", "--arg", "x"), "--arg takes NAME=VALUE"),
        (("build", "/etc/hosts", "/etc", "--arg", "x=1"), "no definition uses the argument x"),
        (("pull",), "nothing to pull"),
        (("pull", "/dev/null"), "nothing to pull"),
        (("pull", "--image", "../x"), "no image name"),
        (("rm", "none"), "there is no image"),
        (("rm", "/etc"), "/etc is not kept in"),
        (("rm", ".."), "no image name"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(data, arguments, says):
    told = CliRunner().invoke(cli, ["images", *arguments], env={"PRORL_DATA_DIR": str(data)})
    assert isinstance(told.exception, ProrlError), told.output
    assert says in str(told.exception)
    assert "\n" not in str(told.exception)
    assert told.output == ""


def test_a_bad_line_of_a_data_set_is_named(data, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"image": "a"}\n{"image": 3}\n')
    told = prorl("images", "pull", str(rows), PRORL_DATA_DIR=str(data))
    assert told.stderr == "prorl: instance 2: image must be an image's name\n"
    rows.write_text('{"image": "a"}\nno json\n')
    assert "line 2: not JSON" in prorl("images", "pull", str(rows), PRORL_DATA_DIR=str(data)).stderr


def test_a_folder_out_of_the_sandbox_users_reach_is_refused_at_once(data, tmp_path):
    tree = make_borrowing_root(tmp_path / "plain")
    data.chmod(0o700)
    told = prorl("images", "build", str(tree), PRORL_DATA_DIR=str(data), PRORL_SANDBOX_USER="daemon")
    data.chmod(0o755)
    if told.returncode != 0:  # an ordinary user reaches its own
        assert told.stderr.startswith("prorl: daemon, whom sandboxes run as, cannot reach ")
        assert "PRORL_IMAGES_DIR" in told.stderr


def test_without_the_program_it_says_how_to_get_it(data, tmp_path):
    tree = make_borrowing_root(tmp_path / "plain")
    told = prorl("images", "build", str(tree), PRORL_DATA_DIR=str(data), PATH="/nowhere")
    assert told.returncode == 1
    assert "install_apptainer.sh" in told.stderr
