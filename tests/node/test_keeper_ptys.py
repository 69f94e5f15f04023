"""Spawning on a pseudo-terminal leaves nothing behind when it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prorl_celery.node.keeper.ptys import spawn


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")


def test_a_fork_that_fails_leaves_no_descriptor_open(monkeypatch):
    def refuse() -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "forkpty", refuse)
        patch.setattr(os, "fork", refuse)
        for _ in range(5):
            with pytest.raises(BlockingIOError):
                spawn(["true"])
    assert descriptors() == before


def test_a_pty_that_cannot_be_had_leaves_no_descriptor_open(monkeypatch):
    def refuse() -> None:
        raise OSError("out of pty devices")

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "forkpty", refuse)
        patch.setattr(os, "openpty", refuse)
        patch.setattr("pty._open_terminal", refuse)
        with pytest.raises(OSError, match="out of pty devices"):
            spawn(["true"])
    assert descriptors() == before


def test_an_exec_that_fails_leaves_neither_descriptor_nor_child():
    before, childless = descriptors(), children()
    for _ in range(5):
        with pytest.raises(OSError, match="Argument list too long"):
            spawn(["true"], env={"PATH": os.environ["PATH"], "X": "x" * (1 << 20)})
    assert (descriptors(), children()) == (before, childless)


def test_one_that_works_is_one_of_ptyprocess_without_its_sleeps():
    process = spawn(["echo", "hello"])
    assert process.read() == b"hello\r\n"
    process.close()
    assert process.delayafterclose == process.delayafterterminate == 0
