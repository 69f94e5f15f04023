"""`prorl janitor` without a service: what dead ones left, what would not go, and the exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prorl_celery.cli.main import cli
from prorl_celery.node.janitor import leftovers, processes, things
from prorl_celery.node.janitor.removal import remove
from prorl_celery.sandbox.owner import pid_namespace

USER = 4_000_000_000
"""A user that nobody is: other janitors of this machine are not to find what these tests leave about."""
PID_OF_NONE = 2**22 + 1


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on this machine leave things too."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(things, "temporary", lambda: [tmp_path / "tmp"])
    monkeypatch.setattr(things, "of_keepers", list)
    monkeypatch.setattr(processes, "this_user", lambda: USER)
    for name in [name for name in os.environ if name.startswith("PRORL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PRORL_RUN_DIR", str(tmp_path / "run"))


@pytest.fixture
def orphan() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a dead keeper left."""
    label = f"prorl-init-{PID_OF_NONE}-1-{pid_namespace()}-{USER}"
    code = "import time; print(flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code, label], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def janitor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["janitor", *arguments])


def test_a_dry_run_tells_what_is_left_and_touches_nothing(orphan: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = tmp_path / "tmp" / f"prorl-share-{os.geteuid()}-0123abcd"
    folder.mkdir()
    told = janitor("--dry-run", "--json")
    found = {(one["kind"], one["name"], one["outcome"]) for one in json.loads(told.stdout)["found"]}
    assert found >= {("process", str(orphan.pid), "found"), ("folder", str(folder), "found")}
    assert told.exit_code == 1
    assert orphan.poll() is None
    assert folder.is_dir()


def test_what_is_left_is_removed_and_told_in_a_table(orphan: subprocess.Popen[bytes], tmp_path: Path) -> None:
    told = janitor()
    assert orphan.wait(20) == -signal.SIGKILL
    lines = [line.split("\t") for line in told.stdout.splitlines()]
    assert ["kind", "name", "whose", "outcome"] in lines
    assert ["process", str(orphan.pid), f"process {PID_OF_NONE}, which is gone", "removed"] in lines
    assert "note: only what dead keepers left was looked for" in told.stdout


def test_what_would_not_go_is_told_with_the_reason_and_the_exit_code_and_goes_the_next_time(
    orphan: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pidfd: int, number: int) -> None:
        raise PermissionError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "remove", partial(remove, kill=refuse))
        told = janitor("--json")
    (one,) = [one for one in json.loads(told.stdout)["found"] if one["name"] == str(orphan.pid)]
    assert (one["outcome"], one["why"], told.exit_code) == ("failed", "not today", 1)
    assert orphan.poll() is None
    told = janitor("--json")
    assert orphan.wait(20) == -signal.SIGKILL
    assert {one["outcome"] for one in json.loads(told.stdout)["found"]} == {"removed"}
    assert told.exit_code == 0


def test_what_belongs_to_a_living_process_is_not_even_told(tmp_path: Path) -> None:
    from prorl_celery import folders

    with folders.make(tmp_path / "tmp", "share") as folder:
        assert str(folder.path) not in janitor("--dry-run", "--json").stdout
