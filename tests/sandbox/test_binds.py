"""Which folders of the host a sandbox may see."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.binds import Bind, allowed_binds
from prorl_celery.settings import Settings


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Reachable for every user, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="prorl-test-binds-") as name:
        path = Path(name)
        path.chmod(0o755)
        for part in ("read", "read/deep", "write", "other"):
            (path / part).mkdir()
            (path / part / "file").write_text(f"{part}\n")
            (path / part).chmod(0o777)
        (path / "read" / "out").symlink_to(path / "other")
        (path / "read" / "in").symlink_to(path / "read" / "deep")
        (path / "link").symlink_to(path / "read")
        yield path


@pytest.fixture(scope="module")
def sandbox_settings(tmp_path_factory, folder):
    return Settings(
        run_dir=tmp_path_factory.mktemp("run"), node="n1", sandbox_binds=(f"{folder}/read", f"{folder}/write:rw")
    )


def test_what_is_allowed_is_bound_with_its_links_resolved(folder):
    wanted = (f"{folder}/link/in:/data", f"{folder}/write:/out:rw", f"{folder}/read/file:/one/file:ro")
    assert allowed_binds(wanted, (f"{folder}/link", f"{folder}/write:rw"), None) == (
        Bind(os.path.realpath(folder / "read/deep"), "/data", False),
        Bind(os.path.realpath(folder / "write"), "/out", True),
        Bind(os.path.realpath(folder / "read/file"), "/one/file", False),
    )


@pytest.mark.parametrize(
    ("bind", "says"),
    [
        ("{0}/other:/x", "names no folder"),
        ("{0}/read/out:/x", "names no folder"),
        ("{0}/read/../other:/x", "names no folder"),
        ("{0}/reading:/x", "names no folder"),
        ("/:/x", "names no folder"),
        ("{0}/read:/x:rw", "for reading only"),
        ("{0}/read/none:/x", "there is no"),
        ("{0}/read", "is not SOURCE:TARGET"),
        ("{0}/read:/x:rx", "is not SOURCE:TARGET"),
        ("{0}/read:/x:rw:ro", "is not SOURCE:TARGET"),
        ("read:/x", "two absolute paths"),
        ("{0}/read:x", "two absolute paths"),
        ("{0}/read:/x,/etc", "without commas"),
        ("{0}/read:/x/../etc", "no plain path"),
        ("{0}/read:/", "no plain path"),
        ("{0}/read://x", "no plain path"),
        ("{0}/read:/proc/sys", "the sandbox's own"),
        ("{0}/read:/dev", "the sandbox's own"),
        ("{0}/read:/workspace", "the sandbox's own"),
        ("{0}/read:/tmp", "the sandbox's own"),
    ],
)
def test_what_is_not_allowed_is_refused_by_its_name(folder, bind, says):
    text = bind.format(folder)
    with pytest.raises(SandboxError, match=says) as refused:
        allowed_binds((text,), (f"{folder}/read", f"{folder}/write:rw"), None)
    assert text in str(refused.value)


def test_a_link_to_a_name_that_would_be_read_as_more_binds_is_refused(folder):
    (folder / "read" / "a,b").mkdir()
    (folder / "read" / "plain").symlink_to(folder / "read" / "a,b")
    with pytest.raises(SandboxError, match="a name that cannot be bound"):
        allowed_binds((f"{folder}/read/plain:/x",), (f"{folder}/read",), None)


def test_a_node_that_allows_none_refuses_all(folder):
    with pytest.raises(SandboxError, match="PRORL_SANDBOX_BINDS"):
        allowed_binds((f"{folder}/read:/x",), (), None)


def test_bubblewrap_binds_what_is_allowed(start, folder):
    sandbox = start(binds=(f"{folder}/read:/data/in", f"{folder}/write:/workspace/out:rw", f"{folder}/write:/mnt"))
    said = sandbox.shell.run("cat /data/in/file /workspace/out/file /mnt/file", timeout=20).output
    assert said == "read\nwrite\nwrite\n"
    assert sandbox.shell.run("touch /data/in/new || touch /mnt/new", timeout=10).exit_code != 0
    assert sandbox.shell.run("touch /workspace/out/new", timeout=10).exit_code == 0
    assert (folder / "write" / "new").exists()


def test_bubblewrap_has_the_machines_own_folders_and_says_so(start, folder, keeper):
    with pytest.raises(SandboxError, match="bind to another place"):
        start(binds=(f"{folder}/read:/usr/share/x",))
    with pytest.raises(SandboxError, match="names no folder"):
        start(binds=(f"{folder}/other:/x",))
    assert keeper.client.list() == []
