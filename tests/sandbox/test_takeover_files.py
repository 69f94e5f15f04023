"""File operations whose process is killed at any step: a write is done in full or not at all, as is said."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from holders import SECONDS, Steps, Succession
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled, SandboxError
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.testing.keeper import KeeperProcess

PATH = "/workspace/file"
OLD = b"old" * 1000


@pytest.fixture
def succession(keeper: KeeperProcess, start: Callable[..., LiveSandbox]) -> Succession:
    sandbox = start()
    sandbox.files.write(PATH, OLD)
    return Succession(keeper, sandbox.handle)


@pytest.mark.parametrize("size", [10, 5000, 600_000])
def test_a_write_whose_process_is_killed_at_any_step_took_place_or_not_as_is_said(succession, size):
    said = []
    for step in itertools.count(1):
        new = f"{step}\n".encode() + b"x" * size

        def write(sandbox: LiveSandbox, mark: str = f"n{step}", new: bytes = new) -> None:
            sandbox.mark(mark)
            sandbox.files.write(PATH, new)

        ended = succession.holder(write, Steps(step)).await_end() is not None
        with succession.taken_over() as sandbox:
            written = sandbox.files.recover() and sandbox.marked == f"n{step}"
            assert sandbox.files.read(PATH, limit_bytes=4 << 20) == (new if written else OLD)
            assert sandbox.files.listing("/workspace") == ["file"]
            assert sandbox.shell.run("echo as ever", timeout=SECONDS).output == "as ever\n"
            sandbox.files.write(PATH, OLD)
        said.append(written)
        if ended:
            break
    assert said[-1]
    assert not said[0]
    assert len(said) > 6


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_whoever_follows_upon_a_read_that_was_cut_off_reads_its_own_answers(succession, size):
    with succession.taken_over() as sandbox:
        sandbox.files.write("/workspace/read", b"r" * size)
    for step in itertools.count(1):
        ended = succession.holder(
            lambda sandbox: sandbox.files.read("/workspace/read", limit_bytes=4 << 20), Steps(step)
        ).await_end()
        with succession.taken_over() as sandbox:
            assert sandbox.files.read(PATH) == OLD
            assert sandbox.files.listing("/workspace") == ["file", "read"]
        if ended is not None:
            break
    assert step > 5


def test_a_write_that_was_refused_did_not_take_place(succession):
    with succession.taken_over() as sandbox:
        sandbox.mark("refused")
        with pytest.raises(IsADirectoryError):
            sandbox.files.write("/workspace", b"x")
    with succession.taken_over() as sandbox:
        assert not sandbox.files.recover()


def test_a_write_of_an_earlier_mark_is_not_the_present_ones(succession):
    with succession.taken_over() as sandbox:
        sandbox.mark("one")
        sandbox.files.write(PATH, b"new")
        assert sandbox.files.recover()
        sandbox.mark("two")
    with succession.taken_over() as sandbox:
        assert not sandbox.files.recover()


def test_a_request_that_was_given_up_spoils_none_that_follow(start, cancel: SetCancel):
    sandbox = start()
    sandbox.files.write(PATH, OLD)
    cancel.set()
    with pytest.raises(Cancelled):
        sandbox.files.read(PATH)
    cancel.clear()
    assert sandbox.files.read(PATH) == OLD


def test_half_a_request_is_none_whatever_makes_up_its_other_half(succession):
    """What the sandbox's first process takes for whole says so itself."""
    with succession.taken_over() as sandbox:
        channel = sandbox._control._channel
        channel.setblocking(True)
        for half in (b"0123 write 3 /workspace/file\n", b"0123 read 9 \\0057etc:012\n", b"0123 write\n", b"\n", b" \n"):
            channel.send(half)
            assert channel.recv(100).endswith(b" 38\n")
        channel.setblocking(False)
        assert sandbox.files.read(PATH) == OLD


def test_a_sandbox_that_is_gone_is_an_error_to_whoever_would_take_it_over(keeper, succession):
    with succession.taken_over() as sandbox:
        keeper.client.stop(sandbox.handle.sandbox_id)
        with pytest.raises(SandboxError):
            sandbox.shell.run("true", timeout=SECONDS)
    with pytest.raises(SandboxError, match="is gone"), succession.taken_over():
        pass
