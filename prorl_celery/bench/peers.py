"""The same `true` by others: bash on a bare pseudo-terminal, and a session of SWE-ReX.

The bare pseudo-terminal is the floor: bash without prompt or echo, `true; echo MARK` written, the mark read. Nothing is
isolated, no time-out kept, no working directory or cut of output known. SWE-ReX runs in a process of its own with an
empty home, since it reads the user's `.bashrc` and gives that a second.

    python -P -m prorl_celery.bench.peers COUNT      SWE-ReX's milliseconds, as JSON
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import time

from ptyprocess import PtyProcess

from prorl_celery.bench.report import BenchFailed, Report, median
from prorl_celery.bench.sizes import Sizes

RAW_FIGURES = ("raw_pty_ms_median", "ratio_to_raw_pty")
SWEREX_FIGURES = ("swerex_over_ours",)
MARK = b"<done-%d>"
COMMAND_SECONDS = 10.0
SWEREX_STARTUP_SECONDS = 30.0


def raw_pty(report: Report, sizes: Sizes) -> None:
    """The floor. `ratio_to_raw_pty` is ours over it."""
    bash = PtyProcess.spawn(["bash", "--norc", "--noprofile", "--noediting"], env=_clean(PS1="", PS2=""), echo=False)
    try:
        _answer(bash, -1)
        took = []
        for index in range(sizes.commands):
            began = time.perf_counter()
            _answer(bash, index)
            took.append((time.perf_counter() - began) * 1000)
    finally:
        bash.close(force=True)
    report.figures["raw_pty_ms_median"] = median(took)
    if "bash_bwrap_ms_median" in report.figures:
        report.figures["ratio_to_raw_pty"] = report.figures["bash_bwrap_ms_median"] / median(took)


def swerex(report: Report, sizes: Sizes) -> None:
    """A session of SWE-ReX's local runtime."""
    with tempfile.TemporaryDirectory(prefix="prorl-bench-home-") as home:
        told = subprocess.run(
            [sys.executable, "-P", "-m", "prorl_celery.bench.peers", str(sizes.swerex_commands)],
            capture_output=True,
            text=True,
            timeout=SWEREX_STARTUP_SECONDS + sizes.swerex_commands * COMMAND_SECONDS,
            check=False,
            env=_clean(HOME=home),
            cwd=home,
        )
    if told.returncode != 0:
        raise BenchFailed(f"swe-rex: {told.stderr[-500:]}")
    took = json.loads(told.stdout.splitlines()[-1])
    report.figures["swerex_ms_median"] = median(took)
    if "bash_bwrap_ms_median" in report.figures:
        report.figures["swerex_over_ours"] = median(took) / report.figures["bash_bwrap_ms_median"]


def lacks_swerex() -> str | None:
    """Why SWE-ReX cannot be measured here; None when it can."""
    if importlib.util.find_spec("swerex") is None:
        return "SWE-ReX is not installed: pip install 'prorl-celery[bench]'"
    return None


def _answer(bash: PtyProcess, index: int) -> None:
    """Have one `true` run. Raises `BenchFailed` when it does not end."""
    mark = MARK % index
    # Halves, so that an echo of the command, if any, is not taken for its output.
    bash.write(b"true; echo '<done'-%d'>'\n" % index)
    said, poll = b"", select.poll()
    poll.register(bash.fd, select.POLLIN)
    while mark not in said:
        if not poll.poll(COMMAND_SECONDS * 1000):
            raise BenchFailed(
                f"bash on a bare pty did not answer within {COMMAND_SECONDS:g} s; it said {said[-200:]!r}"
            )
        said += os.read(bash.fd, 65536)


def _clean(**more: str) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "TERM": "dumb", "LANG": "C.UTF-8"} | more


async def _swerex_session(count: int) -> list[float]:
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
    from swerex.runtime.local import LocalRuntime

    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=SWEREX_STARTUP_SECONDS))
    took = []
    for _ in range(count):
        began = time.perf_counter()
        seen = await runtime.run_in_session(BashAction(command="true", timeout=COMMAND_SECONDS))
        took.append((time.perf_counter() - began) * 1000)
        if seen.exit_code != 0:
            raise BenchFailed(f"swe-rex: `true` came to {seen!r}")
    await runtime.close()
    return took


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_swerex_session(int(sys.argv[1])))))
