"""A supervisor that executes its own program anew, on real processes: who is kept, who replaced, and failures."""

import os
import signal
from pathlib import Path

from supervised_help import Serve, Service, alive, until


def begin(serve: Serve) -> Service:
    service = serve("renewed")
    for unit in ("keeper", "a", "b", "gone"):
        service.pid(unit)
    return service


def renew(service: Service, version: str) -> None:
    (service.place / "version").write_text(version)
    service.process.send_signal(signal.SIGUSR1)


def is_over(service: Service, restarts: int) -> bool:
    return bool(service.note()["restarts"] == restarts)


def test_a_rolling_restart_replaces_all_but_what_is_kept_by_the_new_code(serve: Serve) -> None:
    service = begin(serve)
    keeper, old = service.pid("keeper"), [service.pid("a"), service.pid("b"), service.pid("gone")]
    assert service.note()["state"] == "serving"
    renew(service, "2")
    until(lambda: is_over(service, 1), "it is over")
    assert service.process.poll() is None, "the supervisor is the same process"
    assert service.note() | {"owner": ""} == {
        "pid": service.process.pid, "owner": "", "state": "serving", "restarts": 1, "error": None, "outdated": [],
    }  # fmt: skip
    assert [text for _, text in service.starts("a")] == ["", "2"]
    assert [text for _, text in service.starts("b")] == ["", "2"]
    assert [text for _, text in service.starts("fresh")] == ["2"], "a unit that only the new code has"
    until(lambda: not any(alive(pid) for pid in old), "and one that it no longer has is gone")
    assert len(service.starts("gone")) == 1
    assert len(service.starts("done")) == 1, "what has ended for good is not begun again"
    assert len(service.starts("a-told")) == 1, "the old was told, and not killed"
    assert service.starts("keeper") == [(keeper, "")]
    assert alive(keeper)
    os.kill(service.pid("a", 2), signal.SIGKILL)
    service.pid("a", 3)
    assert service.stop() == 0
    assert service.starts("ends")[0][1] == "1", "what the command carries comes through"
    assert not alive(keeper)


def test_restarts_follow_one_another_and_a_keeper_that_was_kept_is_restarted_when_it_dies(serve: Serve) -> None:
    service = begin(serve)
    renew(service, "2")
    until(lambda: is_over(service, 1), "the first is over")
    renew(service, "3")
    until(lambda: service.note()["state"] != "serving", "the second has begun")
    service.process.send_signal(signal.SIGUSR1)
    until(lambda: is_over(service, 3), "so is a third, which was asked for meanwhile")
    assert [text for _, text in service.starts("a")] == ["", "2", "3", "3"]
    os.kill(service.pid("keeper"), signal.SIGKILL)
    service.pid("keeper", 2)
    assert service.stop() == 0
    assert service.starts("ends")[0][1] == "3"


def test_a_program_that_does_not_start_changes_nothing(serve: Serve) -> None:
    service = begin(serve)
    pids = [service.pid(unit) for unit in ("keeper", "a", "b", "gone")]
    renew(service, "broken")
    until(lambda: is_over(service, 1), "it is over")
    assert service.note()["state"] == "failed"
    assert "exit code 3" in service.note()["error"]
    assert all(alive(pid) for pid in pids)
    renew(service, "2")
    until(lambda: is_over(service, 2), "the next is over")
    assert service.note()["state"] == "serving"
    assert service.note()["error"] is None
    assert service.stop() == 0


def test_a_fresh_child_that_does_not_come_up_ends_the_restart_for_those_whose_turn_it_is_not(serve: Serve) -> None:
    service = begin(serve)
    old = service.pid("b")
    renew(service, "crashes")
    until(lambda: is_over(service, 1), "it is over")
    note = service.note()
    assert note["state"] == "failed"
    assert "fresh b" in note["error"]
    assert not alive(old)
    assert [text for _, text in service.starts("a")] == ["", "crashes"]
    assert len(service.starts("b")) >= 4
    assert service.stop() == 0


def test_a_stop_in_the_middle_of_a_restart_leaves_nothing(serve: Serve) -> None:
    service = begin(serve)
    keeper = service.pid("keeper")
    renew(service, "2")
    service.pid("a", 2)
    assert service.stop() == 0
    pids = [pid for unit in ("a", "b", "gone", "fresh") for pid, _ in service.starts(unit)]
    assert not [pid for pid in (keeper, *pids) if alive(pid)]


def test_a_stop_that_meets_the_program_while_it_is_executed_is_obeyed(serve: Serve) -> None:
    service = begin(serve)
    keeper = service.pid("keeper")
    renew(service, "2")
    command = Path(f"/proc/{service.process.pid}/cmdline")
    until(lambda: b"--adopt" in command.read_bytes(), "it is executed anew, and has no handlers yet")
    assert service.stop() == 0
    assert not alive(keeper)


def test_a_killed_supervisor_that_was_renewed_leaves_nothing(serve: Serve) -> None:
    service = begin(serve)
    renew(service, "2")
    until(lambda: is_over(service, 1), "it is over")
    pids = [service.pid("keeper"), service.pid("a", 2), service.pid("b", 2), service.pid("fresh")]
    assert service.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not any(alive(pid) for pid in pids), "children are gone")


def test_no_program_inherits_what_a_renewed_supervisor_holds(serve: Serve) -> None:
    service = begin(serve)
    renew(service, "2")
    until(lambda: is_over(service, 1), "it is over")
    os.kill(service.pid("keeper"), signal.SIGKILL)
    keeper = service.pid("keeper", 2)
    until(lambda: Path(f"/proc/{keeper}/comm").read_text().strip() == "cat", "it is executed")
    held = lambda: sorted(int(entry.name) for entry in Path(f"/proc/{keeper}/fd").iterdir())  # noqa: E731
    until(lambda: held() == [0, 1, 2], "it has loaded its libraries, and holds nothing else")
    assert service.stop() == 0
