"""A machine with no process to give is no fault of a solution; taking them from the judge is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from prorl_celery.grading.code.inside import cases, kernel
from prorl_celery.grading.code.inside.child import Limits, Program


def refuse(monkeypatch: pytest.MonkeyPatch, *, times: int, number: int = errno.EAGAIN) -> list[int]:
    """`os.fork` refuses so often, then gives a child of this pid."""
    tries: list[int] = []

    def fork() -> int:
        tries.append(len(tries))
        if len(tries) <= times:
            raise OSError(number, os.strerror(number))
        return 4711

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(kernel, "children", lambda pid: [])
    return tries


def test_a_fork_that_the_machine_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = refuse(monkeypatch, times=3)
    assert kernel.fork(30.0) == 4711
    assert len(tries) == 4


def test_a_machine_that_goes_on_refusing_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, times=10**6)
    assert kernel.fork(0.05) is None


def test_another_error_is_no_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = refuse(monkeypatch, times=1, number=errno.EPERM)
    with pytest.raises(PermissionError):
        kernel.fork(30.0)
    assert len(tries) == 1


def test_a_judge_whose_limit_was_changed_blames_the_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = refuse(monkeypatch, times=1)
    monkeypatch.setattr(kernel, "MOST_PROCESSES", (1, 1))
    with pytest.raises(BlockingIOError):
        kernel.fork(30.0)
    assert len(tries) == 1


def test_a_judge_with_processes_of_a_case_left_blames_the_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, times=1)
    monkeypatch.setattr(kernel, "children", lambda pid: [1234])
    with pytest.raises(BlockingIOError):
        kernel.fork(30.0)


class OneFolder:
    """Stands for `Places`, which would clear this machine's own folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fresh(self, files: list[tuple[str, bytes]]) -> str:
        return str(self._folder)

    def clear(self) -> bool:
        return True


def test_a_case_that_could_not_be_started_is_starved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "fork", lambda within: None)
    before = len(list(Path("/proc/self/fd").iterdir()))
    program, limits = Program(None, None, None, 1), Limits(1.0, 1.0, 1 << 30, 1 << 20)
    ended = cases.run(OneFolder(tmp_path), program, limits, b"1\n", [], [])  # type: ignore[arg-type]
    assert ended.kind == "starved"
    assert len(list(Path("/proc/self/fd").iterdir())) == before
