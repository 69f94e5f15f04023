"""The supervisor on real processes: the dead are started again, and a stop or a kill leaves nothing."""

import os
import signal
import time
from pathlib import Path

import pytest
from supervised_help import DEADLINE_S, Serve, alive, until


@pytest.mark.parametrize("unit", ["a", "b"])
def test_a_killed_child_is_started_again(serve: Serve, unit: str) -> None:
    service = serve("two")
    first = service.pid(unit)
    os.kill(first, signal.SIGKILL)
    assert service.pid(unit, 2) != first
    assert service.stop() == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_leaves_nothing(serve: Serve, signum: signal.Signals) -> None:
    service = serve("two")
    pids = [service.pid("a"), service.pid("b")]
    assert service.stop(signum) == 0
    assert [pid for pid in pids if alive(pid)] == []


def test_under_nohup_a_hangup_stops_nothing(serve: Serve) -> None:
    service = serve("two", hangup="ignore")
    first, other = service.pid("a"), service.pid("b")
    service.process.send_signal(signal.SIGHUP)
    os.kill(first, signal.SIGKILL)
    assert alive(service.pid("a", 2)), "it goes on with its work"
    assert alive(other)
    assert service.stop() == 0


def test_a_killed_supervisor_leaves_nothing(serve: Serve) -> None:
    service = serve("two")
    pids = [service.pid("a"), service.pid("b")]
    assert service.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not any(alive(pid) for pid in pids), "children are gone")


def test_a_child_that_keeps_dying_is_started_ever_more_rarely(serve: Serve) -> None:
    service = serve("looping")
    began = time.monotonic()
    service.pid("a", 5)
    # at once, then after 0.1, 0.2 and 0.4 s
    assert time.monotonic() - began >= 0.7
    assert service.stop() == 0
    assert len(service.starts("a")) <= 8


def test_a_child_that_ignores_its_signal_is_killed_after_its_grace(serve: Serve) -> None:
    service = serve("impatient")
    pid = service.pid("a")
    assert service.stop() == 0
    assert not alive(pid)


def test_a_second_signal_is_passed_on(serve: Serve) -> None:
    service = serve("draining")
    pid = service.pid("a")
    service.process.send_signal(signal.SIGTERM)
    assert service.pid("a-told") == pid
    assert service.stop() == 0
    assert service.pid("a-told-again") == pid


def test_a_second_signal_hurries_the_stop(serve: Serve) -> None:
    service = serve("stubborn")
    stubborn, other = service.pid("a"), service.pid("b")
    service.process.send_signal(signal.SIGTERM)
    until(lambda: not alive(other), "the first signal took effect")
    began = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - began < 15.0
    assert not alive(stubborn)


def test_what_a_child_put_in_the_background_ends_with_the_service(serve: Serve) -> None:
    service = serve("daemon")
    service.pid("a")
    daemon = service.pid("daemon")
    assert alive(daemon)
    assert service.stop() == 0
    assert not alive(daemon)


def test_what_a_killed_child_leaves_is_ended_while_the_service_goes_on(serve: Serve) -> None:
    service = serve("family")
    first = service.pid("a")
    grandchild = service.pid("grandchild")
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(grandchild), "the grandchild is gone")
    until(lambda: alive(service.pid("grandchild", 2)), "the next one's is there")
    assert alive(service.pid("b"))
    assert service.stop() == 0


def test_a_keepers_death_gives_fresh_stages_of_the_new_boot_while_the_old_drain(serve: Serve) -> None:
    service = serve("boots")
    old = service.pid("stage")
    os.kill(service.pid("keeper"), signal.SIGKILL)
    new = service.pid("stage", 2)
    assert [boot for _, boot in service.starts("stage")] == ["1", "2"]
    until(lambda: service.starts("stage-told"), "the old stage was told to stop")
    assert alive(old)
    assert alive(new)
    until(lambda: not alive(old), "the old stage is killed when its grace is over")
    assert alive(new)
    assert service.stop() == 0


def test_a_failed_vital_step_stops_all_with_exit_code_one(serve: Serve) -> None:
    service = serve("vital")
    assert service.process.wait(DEADLINE_S) == 1
    assert not any(alive(pid) for pid, _ in service.starts("a"))


def test_a_unit_waits_until_what_it_comes_after_is_ready(serve: Serve) -> None:
    service = serve("ordered")
    service.pid("early", 2)  # killed and started again, since its probe gave up
    assert service.starts("late") == []
    (service.place / "go").touch()
    service.pid("late")
    assert service.stop() == 0


def test_a_closed_pipe_is_an_exception_to_a_forked_child_and_a_signal_to_a_program(serve: Serve) -> None:
    service = serve("pipes")
    service.pid("a")
    assert service.starts("a")[0][1] == "BrokenPipeError"
    service.pid("b")
    [ignored] = [line for line in (service.place / "b.status").read_text().splitlines() if line.startswith("SigIgn")]
    usual = (1 << 31) - 1  # those above are of whoever started this run
    assert int(ignored.split()[1], 16) & usual == 0, "another program gets the signal, as it expects"
    assert service.stop() == 0


def test_what_cannot_be_started_is_tried_again_and_harms_nobody(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # where a directory for the log should be
    service = serve("unlogged")
    service.pid("b")
    assert service.starts("a") == []
    (tmp_path / "file").unlink()
    service.pid("a")
    assert service.stop() == 0
