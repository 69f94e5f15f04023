"""The packages that kernels get where no image brings any: what is published, how, and that Python runs on it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from prorl_celery.errors import SandboxUnavailable
from prorl_celery.sandbox import packages
from prorl_celery.sandbox.bubblewrap import find_binary
from prorl_celery.sandbox.launch import sandbox_user
from prorl_celery.settings import Settings

SECONDS = 60.0


@pytest.fixture
def share() -> Iterator[Path]:
    """A folder that the sandbox user can reach, as a keeper's is."""
    folder = Path(tempfile.mkdtemp(prefix="prorl-test-share-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_the_closure_is_what_is_named_and_what_that_requires():
    found = packages.closure(["ipykernel"])
    assert {"ipykernel", "ipython", "pyzmq", "jupyter-client", "traitlets"} <= set(found)
    assert set(found).isdisjoint({"celery", "pytest", "numpy", *packages.LEFT_OUT})
    assert set(packages.closure(["SymPy", "no-such-package"])) == {"sympy", "mpmath"}


def test_files_are_links_or_copies_that_all_may_read_and_whose_bytecode_is_still_true(share: Path):
    packages.publish(["ipykernel"], share)
    assert packages.are_published(share)
    folder = share / packages.PACKAGES
    for path in folder.rglob("*"):
        assert path.is_symlink() or path.stat().st_mode & 0o444 == 0o444, path
    ours = Path(metadata.distribution("ipykernel").locate_file("ipykernel/kernelapp.py"))
    theirs = folder / "ipykernel" / "kernelapp.py"
    assert theirs.stat().st_mtime == ours.stat().st_mtime
    compiled = Path(importlib.util.cache_from_source(str(theirs)))
    assert int.from_bytes(compiled.read_bytes()[8:12], "little") == int(theirs.stat().st_mtime)
    assert not (folder / "celery").exists()
    assert str((folder / "bin" / "python3").readlink()) == packages.kernel_python(share).program


def test_a_file_that_only_its_owner_may_read_is_copied(share: Path):
    secret = share / "secret.py"
    secret.write_text("x = 1\n")
    secret.chmod(0o600)
    os.utime(secret, (1e9, 1e9))
    placer = packages._Placer(share / "folder")
    placer.place(secret, "a/b/secret.py")
    placed = share / "folder" / "a" / "b" / "secret.py"
    assert placed.stat().st_mode & 0o777 == 0o644
    assert placed.stat().st_mtime == 1e9
    assert secret.stat().st_mode & 0o777 == 0o600


def test_what_was_left_half_way_is_done_again(share: Path):
    half = share / f"{packages.PACKAGES}.part"
    half.mkdir()
    (half / "rubbish").write_text("x")
    packages.publish(["ipykernel"], share)
    assert not (share / packages.PACKAGES / "rubbish").exists()
    packages.publish(["ipykernel"], share)
    assert packages.are_published(share)
    assert not half.exists()


def test_without_ipykernel_there_is_nothing_to_publish(share: Path):
    with pytest.raises(SandboxUnavailable, match="PRORL_KERNEL_PACKAGES"):
        packages.publish(["mpmath"], share)
    assert not packages.are_published(share)


def test_where_the_host_has_no_python_of_our_version_ours_is_published(share: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "SYSTEM_PYTHON", share / "none")
    if Path(sys.base_prefix).is_relative_to("/usr"):  # which sandboxes see
        assert [seen_at for _, seen_at in packages.kernel_python(share).folders] == [packages.SEEN_AT]
        return
    packages.publish(["ipykernel"], share)
    python = packages.kernel_python(share)
    assert python.program == f"{sys.base_prefix}/bin/python{packages.VERSION}"
    user = sandbox_user(Settings())
    binds = [part for folder, seen_at in python.folders for part in ("--ro-bind", str(folder), seen_at)]
    done = subprocess.run(
        [
            find_binary(user, share), "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
            "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", *binds, "--unshare-all",
            "--unshare-user", f"{python.packages}/bin/python3", "-c",
            "import ipykernel.kernelapp, ssl, sqlite3, ctypes, sys; print(sys.version_info[:2], sys.prefix, sys.path)",
        ],
        env={"PYTHONPATH": python.packages, "PATH": "/usr/bin"}, cwd="/", capture_output=True, text=True,
        user=user.uid if user else None, group=user.gid if user else None, timeout=SECONDS,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.startswith(f"{sys.version_info[:2]} {sys.base_prefix} ")
    library = share / packages.PYTHON / "lib" / f"python{packages.VERSION}"
    assert (library / "asyncio").is_dir()
    assert not (library / "site-packages").exists()
