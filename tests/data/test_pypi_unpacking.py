"""Archives from an index: what is unpacked of them, and what is refused with nothing left behind."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from prorl_celery.data.pypi import unpack as unpacking
from prorl_celery.data.pypi.unpack import unpack
from prorl_celery.errors import DatasetError


def tar_of(path: Path, *items: tuple[str, Any]) -> Path:
    """A tar of files (bytes), or of what a function does to a member."""
    with tarfile.open(path, "w:gz") as tar:
        for name, what in items:
            item = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                item.size = len(what)
                tar.addfile(item, io.BytesIO(what))
            else:
                what(item)
                tar.addfile(item)
    return path


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> Any:
    def make(item: tarfile.TarInfo) -> None:
        item.type, item.linkname = kind, target

    return make


def device(item: tarfile.TarInfo) -> None:
    item.type, item.devmajor, item.devminor = tarfile.CHRTYPE, 1, 3


def test_a_source_release_loses_its_top_folder_its_history_and_odd_modes(tmp_path: Path) -> None:
    def executable(item: tarfile.TarInfo) -> None:
        item.mode = 0o4777

    archive = tar_of(
        tmp_path / "a-1.tar.gz",
        ("a-1/setup.py", b"1"), ("a-1/run", executable), ("a-1/.git/config", b"x"),
        ("a-1/sub/link", link("../setup.py")), ("a-1/copy.py", link("a-1/setup.py", tarfile.LNKTYPE)),
        ("a-1/__pycache__/x.pyc", b"x"),
    )  # fmt: skip
    unpack(archive, tmp_path / "out", strip=True)
    found = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*"))
    assert found == ["copy.py", "run", "setup.py", "sub", "sub/link"]
    assert (tmp_path / "out/sub/link").read_text() == "1"
    assert (tmp_path / "out/copy.py").read_text() == "1"
    assert (tmp_path / "out/run").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "items",
    [
        [("a/x", b"1"), ("/etc/evil", b"1")],
        [("a/../../evil", b"1")],
        [("a/out", link("/etc/passwd"))],
        [("a/out", link("../../evil"))],
        [("a/dir", link("..")), ("a/dir/evil", b"1")],
        [("a/dir", link("/tmp")), ("a/dir/evil", b"1")],
        [("a/null", device)],
        [("a/x", b"1"), ("a/x", b"2")],
        [("a/x", b"1"), ("b/x", b"2")],
        [("x", b"1")],
        [("a/x", link("../../etc/passwd", tarfile.LNKTYPE))],
    ],
)
def test_what_leads_out_or_is_no_file_is_refused_and_nothing_is_left(tmp_path: Path, items: list[Any]) -> None:
    archive = tar_of(tmp_path / "a-1.tar.gz", *items)
    with pytest.raises(DatasetError):
        unpack(archive, tmp_path / "out", strip=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a-1.tar.gz"]


def test_a_wheel_is_unpacked_as_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as file:
        file.writestr("a/__init__.py", "x = 1\n")
        file.writestr("a-1.dist-info/METADATA", "Name: a\n")
    unpack(tmp_path / "a-1-py3-none-any.whl", tmp_path / "out", strip=False)
    assert (tmp_path / "out/a/__init__.py").read_text() == "x = 1\n"


@pytest.mark.parametrize("name", ["../evil", "/evil", "a\\..\\evil"])
def test_a_zip_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a-1.zip", "w") as file:
        file.writestr(name, "1")
    with pytest.raises(DatasetError, match="unsafe path"):
        unpack(tmp_path / "a-1.zip", tmp_path / "out", strip=False)


def test_what_is_too_large_or_no_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_BYTES", 1000)
    with pytest.raises(DatasetError, match="more than 1000 bytes"):
        unpack(tar_of(tmp_path / "a-1.tar.gz", ("a/x", bytes(2000))), tmp_path / "out", strip=True)
    (tmp_path / "b-1.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DatasetError, match="no archive"):
        unpack(tmp_path / "b-1.tar.gz", tmp_path / "out", strip=True)
