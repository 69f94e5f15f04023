"""Files are read and written inside the sandbox, byte for byte, and never through a link to the host."""

from __future__ import annotations

import os

import pytest

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.control import quote_path


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_003])
def test_bytes_come_back_as_they_went(sandbox, size):
    data = os.urandom(size)
    sandbox.files.write("/workspace/deep/er/file.bin", data)
    assert sandbox.files.read("/workspace/deep/er/file.bin", limit_bytes=2 << 20) == data


def test_a_path_may_hold_any_character(sandbox):
    path = "/workspace/a b\n\x01'\"\\$(touch x)%s\u00e9/-n*"
    sandbox.files.write(path, b"odd")
    assert sandbox.files.read(path) == b"odd"
    assert sandbox.files.listing("/workspace") == [
        "a b\n\x01'\"\\$(touch x)%s\u00e9/",
        "a b\n\x01'\"\\$(touch x)%s\u00e9/-n*",
    ]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/workspace/none", FileNotFoundError),
        ("/etc", IsADirectoryError),
        ("/dev/tty", OSError),
        ("relative", OSError),
        ("/x\0y", OSError),
        ("/" + "y" * 5000, OSError),
    ],
)
def test_what_cannot_be_read_says_why(sandbox, path, error):
    with pytest.raises(error):
        sandbox.files.read(path)
    assert sandbox.files.read("/etc/passwd")


def test_a_fifo_does_not_hang_the_reader(sandbox):
    sandbox.shell.run("mkfifo /workspace/fifo", timeout=5)
    with pytest.raises(OSError, match="Invalid argument"):
        sandbox.files.read("/workspace/fifo")


def test_a_file_over_the_limit_is_refused(sandbox):
    sandbox.files.write("/workspace/big", bytes(1000))
    with pytest.raises(OSError, match="longer than 999 bytes"):
        sandbox.files.read("/workspace/big", limit_bytes=999)


@pytest.mark.parametrize("path", ["/etc/new", "/usr/new", "/new"])
def test_what_cannot_be_written_says_why(sandbox, path):
    with pytest.raises(OSError, match=r"Permission denied|Input/output|Read-only|Not a directory"):
        sandbox.files.write(path, b"x")
    assert sandbox.files.read("/etc/hosts")


def test_a_full_disk_is_an_error_and_leaves_the_old_file(start):
    sandbox = start(disk_bytes=1 << 20)
    sandbox.files.write("/workspace/file", b"old")
    with pytest.raises(OSError, match="No space left"):
        sandbox.files.write("/workspace/file", bytes(4 << 20))
    assert sandbox.files.read("/workspace/file") == b"old"
    assert sandbox.files.listing("/workspace") == ["file"]


def test_an_executable_stays_one_and_a_link_stays_a_link(sandbox):
    sandbox.files.write("/workspace/run.sh", b"echo one")
    sandbox.shell.run("chmod +x run.sh; ln -s run.sh link", timeout=5)
    sandbox.files.write("/workspace/link", b"echo two")
    result = sandbox.shell.run("./run.sh; readlink link", timeout=5)
    assert result.output == "two\nrun.sh\n"


def test_a_listing_is_two_deep_without_hidden_files_and_none_for_a_file(sandbox):
    sandbox.shell.run("mkdir -p a/b/c .hidden; touch a/x a/b/y z .dot; ln -s /usr link", timeout=5)
    assert sandbox.files.listing("/workspace") == ["a/", "a/b/", "a/x", "link", "z"]
    assert sandbox.files.listing("/workspace/z") is None


def test_a_link_planted_in_the_workspace_reaches_the_sandbox_and_not_the_host(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    sandbox.shell.run(f"ln -s {secret} leak; ln -s /etc/passwd passwd", timeout=5)
    with pytest.raises(FileNotFoundError):
        sandbox.files.read("/workspace/leak")
    assert b"agent" in sandbox.files.read("/workspace/passwd")
    with pytest.raises(OSError):
        sandbox.files.write("/workspace/leak", b"changed")
    assert secret.read_text() == "of the host"


def test_files_still_work_after_the_agent_killed_all_it_could(sandbox):
    sandbox.shell.run("kill -9 -1; kill -9 1; kill -STOP 1", timeout=10)
    sandbox.files.write("/workspace/x", b"1")
    assert sandbox.files.read("/workspace/x") == b"1"


def test_file_operations_on_a_sandbox_that_is_gone_raise(start, keeper):
    sandbox = start()
    keeper.client.stop(sandbox.handle.sandbox_id)
    with pytest.raises(SandboxError):
        sandbox.files.read("/etc/passwd")
    with pytest.raises(SandboxError):
        sandbox.shell.run("true", timeout=5)


def test_paths_are_quoted_for_printf():
    assert quote_path("/a b") == "/a\\0040b"
