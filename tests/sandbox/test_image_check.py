"""An image is checked before a sandbox starts on it: what is wrong is said, with the image's name and what helps."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_root import make_borrowing_root, make_small_root

from prorl_celery.errors import BadImage
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.image_check import SIF_DESCRIPTOR_BYTES, SIF_HEADER, START, borrows_usr, check_image
from prorl_celery.sandbox.launch import User

NOBODY = User(name="nobody", uid=65534, gid=65534)
needs_singularity = pytest.mark.skipif(
    singularity.command() is None,
    reason="no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it on Debian 12)",
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that every user can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="prorl-test-check-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def image(folder: Path) -> Iterator[Path]:
    """A folder with all that an image needs."""
    path = make_small_root(folder / "image")
    (path / START).parent.mkdir(parents=True)
    (path / START).touch()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def built(folder: Path) -> Path:
    """An image file as the program makes it."""
    tree, file = make_borrowing_root(folder / "tree"), folder / "built.sif"
    command = [singularity.command() or "", "-q", "build", str(file), str(tree)]
    subprocess.run(command, check=True, timeout=120)
    file.chmod(0o644)
    return file


@pytest.fixture
def sif(built: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copy(built, tmp_path / "image.sif"))


def test_a_folder_that_is_an_image_is_fit_for_whoever_can_read_it(image):
    check_image(image)
    check_image(image, NOBODY)
    link = image.with_name("link")
    link.symlink_to(image)
    check_image(link)
    link.unlink()


@needs_singularity
def test_an_image_file_is_fit(built):
    check_image(built)
    check_image(built, NOBODY)


def test_what_is_not_there_says_how_to_get_it(folder):
    with pytest.raises(BadImage, match=r"no image .*/none: make it by `prorl images build`"):
        check_image(folder / "none")


@pytest.mark.parametrize("path", ["/", "/dev/null", "/etc", "/etc/passwd"])
def test_the_machine_itself_is_no_image(path):
    with pytest.raises(BadImage):
        check_image(Path(path))


def test_what_its_user_cannot_reach_is_said_with_the_user(image):
    other = User(name="somebody", uid=54321, gid=54321)
    check_image(image, other)
    image.chmod(0o700)
    with pytest.raises(BadImage, match=r"somebody cannot read the image .*/image"):
        check_image(image, other)
    image.chmod(0o755)
    image.parent.chmod(0o700)
    with pytest.raises(BadImage, match="somebody cannot read"):
        check_image(image, other)
    image.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        (START, "no image: `prorl images build"),
        ("usr/bin/bash", "no bash"),
        ("usr/bin/env", "no /usr/bin/env"),
        ("usr/bin/sh", "no /bin/sh"),
    ],
)
def test_a_folder_that_lacks_what_a_sandbox_begins_with(image, lost, says):
    (image / lost).unlink()
    with pytest.raises(BadImage, match=says):
        check_image(image)


def test_links_are_followed_inside_the_image_and_never_out_of_it(image):
    bash = image / "usr/bin/bash"
    bash.rename(image / "opt/bash")
    bash.symlink_to("/opt/bash")
    check_image(image)
    bash.unlink()
    bash.symlink_to("../../../../../../opt/bash")
    check_image(image)
    bash.unlink()
    bash.symlink_to(Path(shutil.which("true") or "/bin/true").resolve())  # the machine's, not the image's
    with pytest.raises(BadImage, match="no bash"):
        check_image(image)
    bash.unlink()
    bash.symlink_to("bash")
    with pytest.raises(BadImage, match="no bash"):
        check_image(image)


def test_another_processors_program_is_told_by_its_header(image):
    bash = image / "usr/bin/bash"
    with bash.open("r+b") as file:
        file.seek(18)
        file.write(struct.pack("<H", 8))  # MIPS
    with pytest.raises(BadImage, match="another kind of processor"):
        check_image(image)


def test_an_image_that_borrows_usr_needs_no_shell_of_its_own(folder):
    path = make_borrowing_root(folder / "borrowing")
    (path / START).parent.mkdir(parents=True)
    (path / START).touch()
    assert borrows_usr(path)
    check_image(path)
    (path / "usr/bin").mkdir()
    assert not borrows_usr(path)
    assert not borrows_usr(folder / "none")


@needs_singularity
@pytest.mark.parametrize("kept", [0, 40, 127, 128, 5000, -1])
def test_a_file_cut_short_is_never_taken_for_an_image(sif, kept):
    os.truncate(sif, kept % sif.stat().st_size)
    with pytest.raises(BadImage, match=r"no image|cut short"):
        check_image(sif)


@needs_singularity
def test_a_file_for_another_processor(sif):
    with sif.open("r+b") as file:
        file.seek(45)
        file.write(b"07")
    with pytest.raises(BadImage, match="another kind of processor"):
        check_image(sif)


@needs_singularity
def test_a_file_without_a_file_system(sif):
    data = bytearray(sif.read_bytes())
    table, size = SIF_HEADER.unpack_from(data)[9:11]
    data[table : table + size] = bytes(size)
    sif.write_bytes(data)
    with pytest.raises(BadImage, match="no complete file system"):
        check_image(sif)


@needs_singularity
def test_a_header_of_nonsense_is_no_image(sif):
    data = bytearray(sif.read_bytes())
    for at in range(64, SIF_HEADER.size, 8):
        spoiled = bytearray(data)
        spoiled[at : at + 8] = b"\xff" * 7 + b"\x7f"
        sif.write_bytes(spoiled)
        if at >= 96:  # where descriptors and data are, and how long
            with pytest.raises(BadImage):
                check_image(sif)
    assert SIF_DESCRIPTOR_BYTES == 585
