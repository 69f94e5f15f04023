"""The `ipython` tool: what the model reads."""

from __future__ import annotations

import pytest

from prorl_celery.sandbox.base import CellResult
from prorl_celery.settings import Settings
from prorl_celery.tools.ipython import IPythonTool, render


def test_a_cell_answers_with_what_it_showed_and_nothing_else(call):
    assert call("ipython", code="x = 20\nprint('hi')\nx + 1") == "hi\n21"
    assert call("ipython", code="x") == "20"


def test_silence_is_said(call):
    assert call("ipython", code="y = 1") == "[no output]"


def test_an_error_is_its_trace(call):
    seen = call("ipython", code="{}['key']")
    assert seen.startswith("---")
    assert seen.endswith("KeyError: 'key'")


def test_a_time_out_is_told_with_what_was_shown(call):
    seen = call("ipython", code="print('begun', flush=True); import time; time.sleep(600)", timeout=0.5)
    assert seen.startswith("begun\n")
    assert seen.endswith("KeyboardInterrupt: \n[timed out after 0.5 s and was interrupted]")


def test_a_kernel_that_ended_is_told(call):
    seen = call("ipython", code="import os; os._exit(3)")
    assert seen == "[the kernel ended (exit code 3) and a new one was started: variables and imports are gone]"
    assert call("ipython", code="1 + 1") == "2"


def test_the_shell_and_the_kernel_share_their_files(call):
    call("bash", command="echo from bash > note.txt")
    assert call("ipython", code="print(open('note.txt').read(), end='')") == "from bash"


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_time_out_that_is_none_is_refused(call, timeout):
    assert "positive" in call("ipython", code="1", timeout=timeout)


def test_the_cause_of_a_kernels_end_is_named():
    ended = CellResult(output="half", ok=False, duration_s=1.0, kernel_ended=137)
    assert render(ended, 5.0) == (
        "half\n[the kernel ended (signal SIGKILL, as when memory runs out) and a new one was started: "
        "variables and imports are gone]"
    )
    lost = CellResult(output="1\n", ok=True, duration_s=1.0, kernel_lost=139)
    assert render(lost, 5.0) == "1\n[the kernel had ended before this (signal SIGSEGV): it ran in a new one]"
    stubborn = CellResult(output="", ok=False, duration_s=1.0, timed_out=True, kernel_ended=137)
    assert render(stubborn, 5.0) == (
        "[timed out after 5 s and was interrupted; the kernel had to be ended and a new one was started: "
        "variables and imports are gone]"
    )


def test_a_call_without_a_time_out_has_the_settings_one():
    class Recorder:
        def run(self, code: str, *, timeout: float) -> CellResult:
            return CellResult(output=f"{code} {timeout}", ok=True, duration_s=0.0)

        def restart(self) -> None:
            raise AssertionError

    tool = IPythonTool(Recorder(), Settings(tool_timeout_seconds=7.0))
    assert tool({"code": "a"}).content == "a 7.0"
    assert tool({"code": "a", "timeout": 10**400}).content == "a 3600.0"
