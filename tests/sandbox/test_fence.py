"""Who holds a sandbox: one process at a time, whatever the one before it thinks. Processes are really stopped."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from holders import SECONDS, Steps, Succession, after

from prorl_celery.errors import FenceLost, SandboxError
from prorl_celery.sandbox import page
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing.keeper import KeeperProcess

FENCED, OTHER = 42, 43
"""Exit codes of a holder that met `FenceLost`, or ended otherwise."""


@pytest.fixture
def succession(keeper: KeeperProcess, start: Callable[..., LiveSandbox]) -> Succession:
    return Succession(keeper, start().handle)


def is_fenced(act: Callable[[LiveSandbox], object]) -> Callable[[LiveSandbox], int]:
    """What a holder does: the act, and an exit code that says how that ended."""

    def work(sandbox: LiveSandbox) -> int:
        try:
            act(sandbox)
        except FenceLost:
            return FENCED
        return OTHER

    return work


def test_a_stopped_holder_that_wakes_takes_no_byte_from_its_successor(succession):
    holder = succession.holder(is_fenced(lambda sandbox: sandbox.shell.run("sleep 0.3; echo old", timeout=SECONDS)))
    holder.await_ready()
    after(0.1)
    holder.signal(signal.SIGSTOP)
    assert holder.await_stop_or_end()
    with succession.taken_over() as sandbox:
        told = sandbox.shell.recover(timeout=SECONDS)
        assert (told.output, told.exit_code) == ("old\n", 0)
        holder.signal(signal.SIGCONT)
        whole = "".join(f"{number}\n" for number in range(3000))
        for _ in range(20):
            assert sandbox.shell.run("seq 0 2999", timeout=SECONDS).output == whole
        assert holder.await_end() == FENCED
        assert sandbox.shell.run("echo $?", timeout=SECONDS).output == "0\n"


def test_a_holder_stopped_at_any_step_either_yields_or_is_not_taken_over_from(succession, monkeypatch):
    """Amid an act it might go on with it at any time: then nobody can have the sandbox, and its job starts over."""
    monkeypatch.setattr(page, "PATIENCE_SECONDS", 0.05)
    refused = yielded = 0
    for step in itertools.count(1):
        holder = succession.holder(
            is_fenced(lambda sandbox: sandbox.shell.run("seq 0 999", timeout=SECONDS)), Steps(step, signal.SIGSTOP)
        )
        if not holder.await_stop_or_end():
            break
        whole = "".join(f"{number}\n" for number in range(1000))
        with ExitStack() as stack:
            try:
                sandbox = stack.enter_context(succession.taken_over())
            except SandboxError:
                refused += 1
                holder.kill()
                sandbox = stack.enter_context(succession.taken_over())
                sandbox.shell.recover(timeout=SECONDS)
            else:
                yielded += 1
                sandbox.shell.recover(timeout=SECONDS)
                holder.signal(signal.SIGCONT)
                assert sandbox.shell.run("seq 0 999", timeout=SECONDS).output == whole
                assert holder.await_end() in (FENCED, OTHER)
            assert sandbox.shell.run("seq 0 999", timeout=SECONDS).output == whole
    assert refused > 5
    assert yielded > 1


@pytest.mark.parametrize(
    "act",
    [
        lambda sandbox: sandbox.shell.run("echo old", timeout=SECONDS),
        lambda sandbox: sandbox.shell.recover(timeout=SECONDS),
        lambda sandbox: sandbox.files.write("/workspace/x", b"old"),
        lambda sandbox: sandbox.files.read("/workspace/x"),
        lambda sandbox: sandbox.mark("old"),
    ],
)
def test_everything_is_refused_once_a_later_claim_has_the_sandbox(keeper, start, act):
    first = start(fence=3)
    first.files.write("/workspace/x", b"new")
    with NeverCancelled() as never:
        second = keeper.client.attach(first.handle, cancel=never, fence=4)
        second.mark("new")
        with pytest.raises(FenceLost):
            act(first)
        assert second.marked == "new"
        assert second.files.read("/workspace/x") == b"new"
        assert second.shell.run("echo new", timeout=SECONDS).output == "new\n"
        second.close()


def test_an_earlier_claim_cannot_have_the_sandbox_any_more(keeper, start):
    sandbox = start(fence=3)
    with NeverCancelled() as never:
        keeper.client.attach(sandbox.handle, cancel=never, fence=7).close()
        for late in (3, 6):
            with pytest.raises(FenceLost):
                keeper.client.attach(sandbox.handle, cancel=never, fence=late)
        keeper.client.attach(sandbox.handle, cancel=never, fence=7).close()


def test_whoever_asks_without_a_fence_holds_it_beside_its_owner(keeper, start):
    sandbox = start(fence=3)
    with NeverCancelled() as never:
        beside = keeper.client.attach(sandbox.handle, cancel=never)
        assert beside.shell.run("x=1; echo beside", timeout=SECONDS).output == "beside\n"
        assert sandbox.shell.run("echo $x", timeout=SECONDS).output == "1\n"
        beside.close()


def test_a_spare_is_its_takers_under_the_takers_fence(keeper, start):
    for _ in range(3):
        start(fence=9)
    with NeverCancelled() as never:
        sandbox = start(fence=9)
        with pytest.raises(FenceLost):
            keeper.client.attach(sandbox.handle, cancel=never, fence=8)


def test_a_sandbox_that_was_closed_here_says_so(start):
    sandbox = start()
    sandbox.close()
    with pytest.raises(SandboxError, match="closed by this process"):
        sandbox.shell.run("true", timeout=SECONDS)
    with pytest.raises(SandboxError, match="closed"):
        sandbox.files.read("/workspace/x")


def test_the_keeper_counts_takeovers(keeper, succession):
    before = keeper.client.status()["takeovers"]
    with succession.taken_over():
        pass
    assert keeper.client.status()["takeovers"] == before + 1
