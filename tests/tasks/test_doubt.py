"""A command that ended with everything else on the machine is not believed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from prorl_celery.errors import Stopping
from prorl_celery.sandbox.base import CommandResult
from tasks.doubt import DoubtfulShell
from tasks.signals import JobSignal


class Ends:
    """A shell whose commands all end so."""

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code

    def run(self, command: str, *, timeout: float) -> CommandResult:
        return CommandResult(output="", exit_code=self.exit_code, cwd="/workspace", duration_s=0.1)


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
    with pytest.raises(Stopping):
        DoubtfulShell(Ends(code), signal).run("python3 tests.py", timeout=1)


@pytest.mark.parametrize("code", [0, 1, 139, None])
def test_a_command_that_ends_by_itself_is_believed_while_the_worker_stops(signal: JobSignal, code: int | None) -> None:
    signal.process_is_stopping()
    assert DoubtfulShell(Ends(code), signal).run("true", timeout=1).exit_code == code


def test_a_command_that_something_else_killed_is_believed(signal: JobSignal) -> None:
    assert DoubtfulShell(Ends(137), signal).run("kill -9 $$", timeout=1).exit_code == 137
