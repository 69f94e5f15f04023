"""Whatever is killed with -9, nothing of it is on the machine half a minute later; no other service is touched."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from e2e_service import QUICK, Service, eventually, running
from remains import MARK, Remains, keeper_of, new_mark
from skeletons import skeleton

from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled

pytestmark = pytest.mark.e2e

HANDLER = {"PRORL_HANDLERS": f"{Path(__file__).with_name('holding.py')}:HoldHandler", "PRORL_SPARE_SANDBOXES": "0"}
SETTINGS = {**QUICK, **HANDLER}
WITHIN = 30.0
"""The invariant's seconds."""


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with skeleton() as path:
        yield path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """One service for those who kill parts of it that come again, and its mark."""
    mark = new_mark()
    with running(tmp_path_factory.mktemp("leaks") / "data", **SETTINGS, **{MARK: mark}) as service:
        yield service, mark


def hold_job(mark: str, image: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"instance": {"data_source": "hold", "rollout_s": 600, "mark": mark, "image": image}, **fields}


def hold_sandboxes(service: Service, mark: str, image: str) -> list[str]:
    """Two jobs in rollout, one with a sandbox of each kind, in each of which a process runs apart from its shell."""
    ids = [job.job_id for job in service.client.submit([hold_job(mark), hold_job(mark, image)])]
    assert eventually(lambda: all(service.client.status(i).stage == "rollout" for i in ids), 60), service.logs()
    assert eventually(lambda: sleepers(mark) == 2, 60), service.logs()
    return ids


def sleepers(mark: str) -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            count += entry.name.isdigit() and (entry / "cmdline").read_bytes() == f"sleep\0{mark}\0".encode()
    return count


@pytest.mark.slow
def test_a_killed_supervisor_takes_all_of_its_service_along(tmp_path: Path, image: str) -> None:
    mark = new_mark()
    with running(tmp_path / "data", **SETTINGS, **{MARK: mark}) as service:
        hold_sandboxes(service, mark, image)
        remains = Remains(service, mark)
        assert {thing.kind for thing in remains.things()} >= {"process", "socket", "folder"}
        service.process.kill()
        service.process.wait(30)
        assert eventually(lambda: remains.all() == [], WITHIN), remains.all()


def test_a_killed_workers_sandboxes_are_taken_over_and_end_with_their_jobs(
    shared: tuple[Service, str], image: str
) -> None:
    service, mark = shared
    jobs = hold_sandboxes(service, mark, image)
    keeper = keeper_of(service)
    before = {one["sandbox_id"] for one in keeper.list()}
    for pid in service.pids("rollout-"):
        with suppress(ProcessLookupError):  # its children go with it
            os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: sleepers(mark) == 4, 60), "the rollouts were begun again, in the same sandboxes"
    assert {one["sandbox_id"] for one in keeper.list()} == before
    for job in jobs:
        service.client.cancel(job)
    assert eventually(lambda: keeper.list() == [], WITHIN)
    assert eventually(lambda: sleepers(mark) == 0, 10)
    assert service.client.service_status()["leaked_sandboxes"] == 0


def test_a_killed_keeper_takes_its_sandboxes_along_and_its_successor_starts_clean(
    shared: tuple[Service, str], image: str
) -> None:
    service, mark = shared
    jobs = hold_sandboxes(service, mark, image)
    remains = Remains(service, mark)
    for job in jobs:
        service.client.cancel(job)
    os.kill(min(remains.keepers), signal.SIGKILL)
    assert eventually(lambda: is_again(service, remains), WITHIN), (remains.things(), service.logs())
    assert eventually(lambda: sleepers(mark) == 0, WITHIN)
    assert eventually(lambda: {service.client.status(job).state for job in jobs} == {"cancelled"}, 60)


def is_again(service: Service, remains: Remains) -> bool:
    """Whether there is another keeper, and what there is of the service is its alone."""
    with suppress(Exception):
        pid = keeper_of(service).status()["pid"]
        return pid not in remains.keepers and {thing.kind for thing in remains.things()} <= {"socket"}
    return False


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another place for temporary files, where the janitors of other services on this machine do not look."""
    with tempfile.TemporaryDirectory(prefix="l", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.usefixtures("apart")
def test_what_is_left_when_everything_was_killed_at_once_the_janitor_removes(tmp_path: Path, image: str) -> None:
    mark = new_mark()
    with running(tmp_path / "data", **SETTINGS, **{MARK: mark}) as service:
        hold_sandboxes(service, mark, image)
        remains = Remains(service, mark)
        while pids := [pid for pid, comm in remains.processes() if comm != "in a sandbox"]:
            for pid in [service.process.pid, *pids]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        service.process.wait(30)
        left = remains.things()
        assert left, "nobody was there to clean up"
        told = janitor(tmp_path / "data", "--dry-run", "--json")
        assert told.returncode == 1
        assert {thing.name for thing in left} & {one["name"] for one in json.loads(told.stdout)["found"]}
        janitor(tmp_path / "data")
        assert eventually(lambda: remains.all() == [], WITHIN), remains.all()


def janitor(data_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}
    return subprocess.run(
        [Path(sys.executable).with_name("prorl"), "janitor", "--data-dir", data_dir, *options],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_two_services_on_a_machine_do_not_touch_each_other(tmp_path: Path, image: str) -> None:
    marks = [new_mark(), new_mark()]
    with (
        running(tmp_path / "a", **SETTINGS, **{MARK: marks[0]}) as killed,
        running(tmp_path / "b", **SETTINGS, **{MARK: marks[1]}) as lives,
    ):
        jobs = [hold_sandboxes(killed, marks[0], image), hold_sandboxes(lives, marks[1], image)]
        remains, stays = Remains(killed, marks[0]), Remains(lives, marks[1])
        before = {one["sandbox_id"] for one in keeper_of(lives).list()}
        killed.process.kill()
        killed.process.wait(30)
        assert eventually(lambda: remains.all() == [], WITHIN), remains.all()
        for place in ("a", "b"):
            found = json.loads(janitor(tmp_path / place, "--json").stdout)["found"]
            assert [one for one in found if one["kind"] == "sandbox"] == []
        assert {one["sandbox_id"] for one in keeper_of(lives).list()} == before
        assert sleepers(marks[1]) == 2
        assert {thing.fate for thing in stays.things()} == {"lives"}
        assert {lives.client.status(job).state for job in jobs[1]} == {"running"}


def test_the_janitor_command_ends_a_sandbox_that_no_job_names(shared: tuple[Service, str], tmp_path: Path) -> None:
    service, _ = shared
    (upkeep,) = service.pids("upkeep")
    os.kill(upkeep, signal.SIGSTOP)  # which would be quicker
    try:
        keeper = keeper_of(service)
        with NeverCancelled() as never:
            keeper.start(SandboxSpec(job_id="nobodys", attempt=1), cancel=never, timeout=60).close()
        (stray,) = keeper.list()

        def told_of(*options: str) -> list[str]:
            told = json.loads(janitor(service.data_dir, "--json", *options).stdout)
            return [one["outcome"] for one in told["found"] if one["name"] == stray["sandbox_id"]]

        assert eventually(lambda: told_of("--dry-run") == ["found"], 30), "when it is no more too young to tell"
        blind = janitor(service.data_dir, "--redis", f"unix://{tmp_path}/none.sock", "--json")
        assert "cannot be told" in blind.stdout
        assert len(keeper.list()) == 1
        assert told_of() == ["removed"]
        assert keeper.list() == []
    finally:
        os.kill(upkeep, signal.SIGCONT)


@pytest.mark.parametrize("count", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_jobs_cancelled_at_any_moment_of_init_leave_no_sandbox(shared: tuple[Service, str], count: int) -> None:
    service, mark = shared
    keeper = keeper_of(service)
    randomness = random.Random(count)
    first = service.client.submit(hold_job(mark)).job_id
    assert eventually(lambda: sleepers(mark) == 1, 60), service.logs()
    service.client.cancel(first)
    jobs = []
    for _ in range(count):
        jobs.append(service.client.submit(hold_job(mark)).job_id)
        time.sleep(randomness.uniform(0.0, 0.15))
        service.client.cancel(jobs[-1])
    assert {service.client.wait(job, timeout=60).state for job in jobs} == {"cancelled"}
    assert eventually(lambda: keeper.list() == [], WITHIN), service.logs()
    remains = Remains(service, mark)
    assert eventually(lambda: not [t for t in remains.things() if t.kind == "process"], WITHIN), remains.things()
    assert sleepers(mark) == 0
    status = keeper.status()
    assert (status["admitted"], status["waiting"], status["stuck"], status["leaked"]) == (0, 0, 0, 0)
    assert status["room"] > 0
