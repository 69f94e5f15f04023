"""A sandbox's outer process: what a start that fails half way leaves, which is nothing."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.orphans import children_of
from prorl_celery.node.keeper.process import SandboxProcess
from prorl_celery.node.keeper.work import ChildWork
from prorl_celery.sandbox.launch import Launch


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_program_that_cannot_be_run_takes_the_container_beside_it_along_and_leaves_no_descriptor():
    loop = Loop()
    with subprocess.Popen(["sleep", "1000"]) as container:
        before = open_descriptors()
        with pytest.raises(SandboxError):
            SandboxProcess(
                Launch(argv=("/no/such/program",), env={}, user=None),
                loop,
                ended=lambda: None,
                stuck=lambda: None,
                inner_pidfd=os.pidfd_open(container.pid),
            )
        assert container.wait(20) == -signal.SIGKILL
        assert open_descriptors() == before


def test_a_child_that_cannot_be_watched_is_ended_and_leaves_no_descriptor(monkeypatch):
    def none_left(pid: int) -> int:
        raise OSError(24, "Too many open files")

    before, children = open_descriptors(), children_of(os.getpid())
    loop = Loop()
    monkeypatch.setattr(os, "pidfd_open", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        ChildWork(lambda: None, loop, lambda found, error: None, timeout=10.0)
    assert children_of(os.getpid()) == children
    assert len(open_descriptors() - before) == 1, "the loop's own"


def test_a_child_that_was_killed_before_it_had_a_group_of_its_own_is_gone_all_the_same():
    loop = Loop()
    ends: list[object] = []

    def done(found: object, error: SandboxError | None) -> None:
        ends.append(error)
        loop.stop()

    work = ChildWork(lambda: signal.pause(), loop, done, timeout=60.0)
    work.kill()
    loop.after(30.0, loop.stop)
    loop.run()
    assert len(ends) == 1
    assert isinstance(ends[0], SandboxError)
