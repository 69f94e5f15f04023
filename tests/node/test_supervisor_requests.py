"""What a supervisor does at its children's word, and at their silence. Real processes."""

import os
import signal
import time
from pathlib import Path

from supervised_help import Serve, alive, until

from prorl_celery.node.crew import RETIRED_MOST


def test_a_child_that_stops_beating_is_killed_and_started_again(serve: Serve) -> None:
    service = serve("beating")
    silent, beating, never_beat = service.pid("b"), service.pid("a"), service.pid("c")
    assert service.pid("b", 2) != silent
    assert not alive(silent)
    assert alive(beating)
    assert alive(never_beat), "who has never beaten is not known to be silent"
    assert service.stop() == 0


def test_a_child_that_stands_still_is_killed_and_started_again(serve: Serve) -> None:
    service = serve("beating")
    still = service.pid("a")
    os.kill(still, signal.SIGSTOP)
    assert service.pid("a", 2) != still
    assert not alive(still)
    assert service.stop() == 0


def test_nobody_is_killed_for_a_silence_in_which_the_supervisor_itself_stood_still(serve: Serve) -> None:
    service = serve("patient")
    child = service.pid("a")
    os.kill(child, signal.SIGSTOP)  # all stand still, as on a machine that is suspended
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 0.5, "its last beats are heard")
    service.process.send_signal(signal.SIGSTOP)
    until(lambda: time.monotonic() - began > 6.0, "longer than a child may be silent")
    service.process.send_signal(signal.SIGUSR1)
    service.process.send_signal(signal.SIGCONT)
    until(lambda: service.note()["state"] == "trying", "it has looked about")
    assert alive(child)
    os.kill(child, signal.SIGCONT)
    until(lambda: service.starts("a-told"), "the restart goes on")
    assert service.stop() == 0


def test_a_child_that_retires_finishes_beside_a_fresh_one_with_no_deadline_while_it_beats(
    serve: Serve, tmp_path: Path
) -> None:
    service = serve("retiring")
    old = service.pid("a")
    fresh = service.pid("a-next")
    assert fresh != old
    neighbour = service.pid("b")
    os.kill(neighbour, signal.SIGKILL)
    service.pid("b", 2)  # the supervisor goes on
    assert alive(old)
    (tmp_path / "end").touch()
    until(lambda: not alive(old), "it ends by itself")
    assert len(service.starts("a")) == 2, "its end is nobody's to make up for"
    assert alive(fresh)
    assert service.stop() == 0


def test_of_many_that_retire_the_oldest_is_told_to_stop_and_the_next_is_ever_later(serve: Serve) -> None:
    service = serve("never at peace")
    until(lambda: service.starts("a-told"), "one is told to stop")
    pids = {pid for pid, _ in service.starts("a")}
    assert service.starts("a-told")[0][0] == service.starts("a")[0][0]
    assert len([pid for pid in pids if alive(pid)]) <= RETIRED_MOST + 2
    assert service.stop() == 0
    assert not [pid for pid, _ in service.starts("a") if alive(pid)]


def test_a_stop_tells_those_that_have_retired_as_well(serve: Serve) -> None:
    service = serve("retiring")
    pids = [service.pid("a"), service.pid("a-next"), service.pid("b")]
    assert service.stop() == 0
    assert not [pid for pid in pids if alive(pid)]


def test_a_process_that_is_started_when_asked_for_ends_by_itself_until_it_is_asked_for_again(
    serve: Serve, tmp_path: Path
) -> None:
    service = serve("asked")
    service.pid("a")
    (tmp_path / "ask").touch()
    first = service.pid("solo")
    until(lambda: not alive(first), "it has ended")
    os.kill(service.pid("a"), signal.SIGKILL)
    service.pid("a", 2)  # the supervisor has done something since
    assert len(service.starts("solo")) == 1
    (tmp_path / "code").write_text("1")
    (tmp_path / "ask").touch()
    second = service.pid("solo", 2)
    until(lambda: not alive(second), "it has died")
    os.kill(service.pid("a", 2), signal.SIGKILL)
    service.pid("a", 3)
    assert len(service.starts("solo")) == 2, "nor is one that died started again before it is asked for"
    (tmp_path / "ask").touch()
    service.pid("solo", 3)
    assert service.stop() == 0
