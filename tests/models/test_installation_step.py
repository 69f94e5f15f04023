"""A step's output is logged and shown, its failure has a reason, and it never outlives its deadline."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from prorl_celery.node.vllm.step import StepFailed, run_step


def run(program: str, log: Path, *, timeout: float = 30.0) -> list[str]:
    lines: list[str] = []
    argv = [sys.executable, "-P", "-u", "-c", program]
    run_step("trying", argv, log=log, timeout=timeout, environ=dict(os.environ), line=lines.append)
    return lines


def test_lines_are_given_as_they_come_and_kept_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    assert run("print('one'); print('two', end='')", log) == ["one", "two"]
    assert "one\ntwo\n" in log.read_text()


def test_a_failure_names_the_line_that_looks_like_its_reason(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="trying failed: ERROR: no such thing") as failed:
        run("print('ERROR: no such thing'); print('bye'); raise SystemExit(3)", tmp_path / "log")
    assert failed.value.output.endswith("bye")


def test_a_step_without_words_fails_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="exit code 3"):
        run("raise SystemExit(3)", tmp_path / "log")


def test_a_step_that_overruns_is_ended_with_its_children(tmp_path: Path) -> None:
    program = "import subprocess, signal; child = subprocess.Popen(['sleep', '600']); print(child.pid); signal.pause()"
    lines: list[str] = []
    began = time.monotonic()
    with pytest.raises(StepFailed, match="longer than 2 s"):
        run_step(
            "trying",
            [sys.executable, "-P", "-u", "-c", program],
            log=tmp_path / "log",
            timeout=2.0,
            environ=dict(os.environ),
            line=lines.append,
        )
    assert time.monotonic() - began < 30
    deadline = time.monotonic() + 30
    while not _has_ended(lines[0]):  # it was killed, and may not have noticed yet
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _has_ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_step_that_closes_its_output_and_stays_is_held_to_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="longer than"):
        run("import os, signal; os.close(1); os.close(2); signal.pause()", tmp_path / "log", timeout=1.0)
