"""The benchmark of the tools: every way for real, a few times; what fails alone; what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from prorl_celery.bench.processes import tree
from prorl_celery.bench.report import BenchFailed, Report
from prorl_celery.bench.sizes import Sizes
from prorl_celery.bench.tools import ours, tools
from prorl_celery.bench.tools.kernels import lacks_gateway
from prorl_celery.bench.tools.own_use import own_use
from prorl_celery.bench.tools.swerex import lacks_swerex
from prorl_celery.bench.tools.tmux import lacks_tmux
from prorl_celery.bench.tools.ways import COMMANDS, Row, in_turns
from prorl_celery.node import prctl
from prorl_celery.node.pause import until

ALWAYS = {
    "bash_bwrap_ms_median", "raw_pty_ms_median", "ratio_to_raw_pty", "output_10mb_s", "output_10mb_rss_mb",
    "sandbox_start_ms_bwrap", "sandbox_start_ms_bwrap_3", "sandbox_start_ms_spare", "bash_local_ms_median",
    "subprocess_ms_median",
    "subprocess_bwrap_ms_median", "kernel_ipc_ms_median", "kernel_bare_ipc_ms_median", "kernel_tcp_ms_median",
    "kernel_over_bare", "warm_first_cell_ms",
}  # fmt: skip
WITH = {
    "singularity": {
        "bash_singularity_ms_median", "sandbox_start_ms_singularity", "sandbox_start_ms_singularity_3",
        "subprocess_singularity_ms_median",
    },
    "swerex": {"swerex_ms_median", "swerex_over_ours"},
    "tmux": {"tmux_ms_median", "tmux_over_ours"},
    "gateway": {"kernel_gateway_ms_median"},
}  # fmt: skip


@pytest.fixture
def places() -> Iterator[Path]:
    """Where temporary folders go for the test: one that the sandbox user can reach, which pytest's is not."""
    folder = Path(tempfile.mkdtemp(prefix="prorl-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def strangers() -> Iterator[Callable[[], list[str]]]:
    """Names what has been started since and lives; orphans of what this process started included, and not what others
    that were there have started.
    """
    before = {process.pid for process in tree(os.getpid())} - {os.getpid()}
    prctl.adopt_orphans()

    def left() -> list[str]:
        others = set(before)
        found = []
        for process in tree(os.getpid())[1:]:  # parents come before their children
            if process.pid in others or process.parent in others:
                others.add(process.pid)
            else:
                found.append(process)
        for process in found:
            with suppress(ChildProcessError):  # no child of ours, or not yet
                os.waitpid(process.pid, os.WNOHANG)
        return [process.name for process in found]

    yield left
    prctl.adopt_orphans(False)


@pytest.mark.e2e
def test_all_that_this_machine_can_is_taken_and_nothing_is_left(tiny: Sizes, places: Path, strangers, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    monkeypatch.setenv("TMPDIR", str(places))
    report = tools(tiny)
    assert report.failed == 0
    assert set(report.figures) >= ALWAYS
    lacks = {
        "singularity": ours.lacks_singularity(), "swerex": lacks_swerex(), "tmux": lacks_tmux(),
        "gateway": lacks_gateway(),
    }  # fmt: skip
    for name, figures in WITH.items():
        assert figures <= set(report.absent if lacks[name] else report.figures), name
    told = json.loads(json.dumps(report.as_json(), allow_nan=False))
    ways = next(table for table in told["tables"] if "MB moved" in table["rows"][0])
    assert [row["way"] for row in ways["rows"]] == [
        "ours, bwrap", "ours, singularity", "ours, local", "raw pty",
        "bash -c", "bwrap bash -c", "singularity exec", "SWE-ReX", "tmux",
    ]  # fmt: skip
    assert ways["rows"][0]["MB moved"] is not None
    assert until(lambda: not strangers(), 30, every=0.05), strangers()
    assert list(places.iterdir()) == []


@pytest.mark.e2e
@pytest.mark.parametrize(
    "ended_by", [signal.SIGINT, *(pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGTERM, signal.SIGKILL))]
)
def test_a_run_that_is_ended_leaves_nothing(places: Path, strangers, ended_by: signal.Signals):
    program = "from prorl_celery.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program, "bench", "tools", "--quick"],
        env={**os.environ, "TMPDIR": str(places)},
        stderr=subprocess.PIPE,
        text=True,
    ) as bench:
        assert bench.stderr is not None
        assert any("starts in singularity" in line or "held open" in line for line in bench.stderr)
        bench.send_signal(ended_by)
        assert bench.wait(timeout=60) != 0
        bench.stderr.close()
    assert until(lambda: not strangers(), 60, every=0.05), strangers()
    if ended_by is not signal.SIGKILL:  # which leaves nobody to remove folders
        assert list(places.iterdir()) == []


def test_a_way_that_fails_is_given_up_alone():
    class Fine:
        copied_bytes = 0

        def run(self, command: str, *, timeout: float) -> str:
            return {"echo hi": "hi\n", "cd /tmp && pwd": "/tmp\n"}.get(command, "")

    class Broken(Fine):
        def run(self, command: str, *, timeout: float) -> str:
            if command == "ls":
                raise BenchFailed("no more")
            return super().run(command, timeout=timeout)

    class Lying(Fine):
        def run(self, command: str, *, timeout: float) -> str:
            return "something else"

    @contextmanager
    def never() -> Iterator[Fine]:
        raise OSError("no such program")
        yield Fine()

    report = Report("tools", 1)
    opened = {"fine": Fine(), "broken": Broken(), "lying": Lying()}

    @contextmanager
    def opening(key: str) -> Iterator[Fine]:
        yield opened[key]

    rows = {key: Row(key, key) for key in (*opened, "never", "lacking")}
    rows["lacking"].lacks = "not installed"
    ways = [(row, (lambda key=key: opening(key)) if key in opened else never) for key, row in rows.items()]
    in_turns(report, ways, dict.fromkeys(COMMANDS, 3), output=True)
    assert {command: len(took) for command, took in rows["fine"].took_ms.items()} == dict.fromkeys(COMMANDS, 3)
    assert set(rows["broken"].took_ms) == {"true", "echo hi"}
    assert [row.lacks for row in rows.values()] == [
        None, "BenchFailed: no more", "BenchFailed: lying: `echo hi` said 'something else'",
        "OSError: no such program", "not installed",
    ]  # fmt: skip
    assert report.failed == 3


def test_what_is_read_and_how_memory_grows_is_told_by_the_kernel(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(bytes(60_000_000))
    with own_use() as use:
        data = file.read_bytes()
        subprocess.run(["cat", str(file)], stdout=subprocess.DEVNULL, check=True, timeout=60)
    assert len(data) <= use.read_bytes < len(data) + 1_000_000, "not what children read"
    assert use.grown_bytes > 50_000_000
