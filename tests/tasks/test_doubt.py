"""A command that ended with everything else on the machine is not believed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from prorl_celery.errors import SandboxError, StoppedInDoubt
from prorl_celery.sandbox.base import CellResult, CommandResult
from tasks.doubt import DoubtfulKernel, DoubtfulShell
from tasks.signals import JobSignal


class Ends:
    """A shell whose commands all end so."""

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code

    def run(self, command: str, *, timeout: float) -> CommandResult:
        return CommandResult(output="", exit_code=self.exit_code, cwd="/workspace", duration_s=0.1)


class Dies:
    """A kernel whose cells all come to this."""

    def __init__(self, **how: Any) -> None:
        self.how = how

    def run(self, code: str, *, timeout: float) -> CellResult:
        return CellResult(**{"output": "", "ok": False, "duration_s": 0.1, **self.how})

    def restart(self) -> None:
        raise AssertionError


@pytest.fixture
def signal() -> Iterator[JobSignal]:
    made = JobSignal()
    yield made
    made.close()


@pytest.mark.parametrize("code", [129, 130, 137, 143])
def test_a_command_ended_by_a_signal_while_the_worker_is_told_to_stop_gives_the_job_back(
    signal: JobSignal, code: int
) -> None:
    threading.Timer(0.1, signal.process_is_stopping).start()
    with pytest.raises(StoppedInDoubt):
        DoubtfulShell(Ends(code), signal).run("python3 tests.py", timeout=1)


@pytest.mark.parametrize("code", [0, 1, 139, None])
def test_a_command_that_ends_by_itself_is_believed_while_the_worker_stops(signal: JobSignal, code: int | None) -> None:
    signal.process_is_stopping()
    assert DoubtfulShell(Ends(code), signal).run("true", timeout=1).exit_code == code


def test_a_command_that_something_else_killed_is_believed(signal: JobSignal) -> None:
    assert DoubtfulShell(Ends(137), signal).run("kill -9 $$", timeout=1).exit_code == 137


@pytest.mark.parametrize("how", [{"kernel_ended": 137}, {"kernel_lost": 143}])
def test_a_kernel_that_ends_while_the_worker_is_told_to_stop_gives_the_job_back(
    signal: JobSignal, how: dict[str, int]
) -> None:
    threading.Timer(0.1, signal.process_is_stopping).start()
    with pytest.raises(StoppedInDoubt):
        DoubtfulKernel(Dies(**how), signal).run("import tests", timeout=1)


@pytest.mark.parametrize("how", [{"kernel_ended": 3}, {"kernel_ended": 137, "timed_out": True}, {"ok": True}])
def test_a_kernel_that_ends_for_its_own_reasons_is_believed_while_the_worker_stops(
    signal: JobSignal, how: dict[str, Any]
) -> None:
    signal.process_is_stopping()
    kernel = DoubtfulKernel(Dies(**how), signal)
    assert kernel.run("1", timeout=1) == Dies(**how).run("1", timeout=1)


def test_a_signal_is_not_believed_of_a_sandbox_that_has_died(signal: JobSignal) -> None:
    def look() -> None:
        raise SandboxError("the sandbox is gone")

    with pytest.raises(SandboxError):
        DoubtfulShell(Ends(129), signal, look).run("sleep 600", timeout=1)
    assert DoubtfulShell(Ends(1), signal, look).run("false", timeout=1).exit_code == 1
