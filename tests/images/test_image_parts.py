"""Definition files read and staged; trees copied, told apart and removed."""

import os
from pathlib import Path

import pytest

from prorl_celery.errors import ImageError
from prorl_celery.images import definition, trees

DEFINITION = """\
# A comment before all.
Bootstrap: docker
From: {{ BASE }}
Stage: build

%arguments
    BASE=debian:12
    LIST=one.txt

%files
    {{ LIST }} /opt/one.txt
    # no file
    "data dir/*.csv" /opt/data
    lists

%post
    echo {{ UNKNOWN }} '%files'

Bootstrap: localimage
From: python

%files from build
    /opt/one.txt
"""


def nothing() -> None:
    return None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data dir").mkdir()
    (tmp_path / "lists").mkdir()
    for name in ("one.txt", "two.txt", "data dir/a.csv", "data dir/b.csv", "data dir/c.txt", "lists/l"):
        (tmp_path / name).write_text(name)
    (tmp_path / "lists" / "link").symlink_to(tmp_path / "one.txt")
    path = tmp_path / "tools.def"
    path.write_text(DEFINITION)
    return path


def test_a_definition_is_read_as_far_as_its_base_and_files(file):
    found = definition.read(file, {})
    assert list(map(str, found.bases)) == ["docker:debian:12", "localimage:python"]
    assert [base.is_pinned for base in found.bases] == [False, True]
    assert [(files.pattern, files.target) for files in found.files] == [
        ("one.txt", "/opt/one.txt"),
        ("data dir/*.csv", "/opt/data"),
        ("lists", "lists"),
    ]
    assert "echo {{ UNKNOWN }}" in found.text


def test_an_argument_goes_before_its_default_and_one_that_nothing_uses_is_refused(file):
    found = definition.read(file, {"BASE": "debian@sha256:" + "0" * 64, "LIST": "two.txt"})
    assert found.bases[0].is_pinned
    assert found.files[0].pattern == "two.txt"
    with pytest.raises(ImageError, match="uses no argument OTHER"):
        definition.read(file, {"OTHER": "1"})


def test_what_is_staged_needs_the_users_folder_no_more(file, tmp_path):
    found = definition.read(file, {})
    bases = found.local_bases(lambda name: Path("/images") / name)
    assert bases == {"python": Path("/images/python")}
    stage = tmp_path / "stage"
    staged = definition.staged(found, stage, bases, step=nothing)
    text = staged.path.read_text()
    assert "From: /images/python\n" in text
    assert "%files from build\n    /opt/one.txt\n" in text
    copied = [line.split() for line in text.splitlines() if line.startswith(f"    {stage}")]
    assert [target for _, target in copied] == ["/opt/one.txt", "/opt/data", "lists"]
    assert Path(copied[0][0]).read_text() == "one.txt"
    assert copied[1][0].endswith("/*")
    assert sorted(path.name for path in Path(copied[1][0]).parent.iterdir()) == ["a.csv", "b.csv"]
    assert not (Path(copied[2][0]) / "link").is_symlink()
    again = definition.staged(found, tmp_path / "again", bases, step=nothing)
    assert again.digests == staged.digests
    (tmp_path / "one.txt").write_text("changed")  # `lists` has a link to it
    changed = definition.staged(found, tmp_path / "changed", bases, step=nothing)
    assert {name for name in changed.digests if changed.digests[name] != staged.digests[name]} == {"one.txt", "lists"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("%post\n    true\n", "no definition"),
        ("Bootstrap: scratch\n%files\n    a b c\n", "more than two names"),
        ("Bootstrap: scratch\n%files\n    'a b\n", "cannot be read"),
        ("Bootstrap: scratch\n%files\n    no-such\n", "there is none"),
        ("Bootstrap: localimage\n", "does not say which"),
    ],
)
def test_a_definition_that_cannot_be_says_why(tmp_path, text, says):
    path = tmp_path / "bad.def"
    path.write_text(text)

    def read_and_stage() -> None:
        found = definition.read(path, {})
        definition.staged(found, tmp_path / "stage", found.local_bases(lambda name: Path(name)), step=nothing)

    with pytest.raises(ImageError, match=says):
        read_and_stage()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "closed/inner").mkdir(parents=True)
    (top / "closed/inner/file").write_bytes(b"x" * 5000)
    os.link(top / "closed/inner/file", top / "same")
    (top / "link").symlink_to("/etc/passwd")
    (top / "folder-link").symlink_to("closed")
    os.mkfifo(top / "pipe")
    (top / "program").write_text("#!/bin/sh\n")
    (top / "program").chmod(0o4755)
    (top / "closed").chmod(0o555)
    return top


def test_a_copy_has_files_folders_and_links_but_no_devices_and_no_setuid(tree, tmp_path):
    copied = tmp_path / "copy"
    trees.copy(tree, copied)
    assert sorted(str(path.relative_to(copied)) for path in copied.rglob("*")) == [
        "closed", "closed/inner", "closed/inner/file", "folder-link", "link", "program", "same",
    ]  # fmt: skip
    assert (copied / "link").readlink() == Path("/etc/passwd")
    assert (copied / "program").stat().st_mode & 0o7777 == 0o755
    assert (copied / "same").samefile(copied / "closed/inner/file")
    assert trees.size(copied) < trees.size(tree) + 8192


def test_a_digest_changes_with_any_content_name_mode_or_link(tree):
    seen = {trees.digest(tree)}
    assert trees.digest(tree) in seen
    (tree / "program").write_text("#!/bin/bash\n")
    seen.add(trees.digest(tree))
    (tree / "program").chmod(0o700)
    seen.add(trees.digest(tree))
    (tree / "program").rename(tree / "other")
    seen.add(trees.digest(tree))
    (tree / "link").unlink()
    (tree / "link").symlink_to("/etc/group")
    seen.add(trees.digest(tree))
    assert len(seen) == 5


def test_filling_in_leaves_what_is_there(tree, tmp_path):
    target = tmp_path / "target"
    (target / "closed").mkdir(parents=True)
    (target / "link").write_text("mine")
    trees.fill_in(tree, target)
    assert (target / "link").read_text() == "mine"
    assert (target / "closed/inner/file").exists()


def test_a_tree_with_folders_that_cannot_be_written_to_is_removed(tree, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tree / "out").symlink_to(outside)
    (tree / "closed/inner").chmod(0)
    trees.remove(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()
    trees.remove(tree)
