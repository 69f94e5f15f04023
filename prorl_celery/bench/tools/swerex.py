"""A session of SWE-ReX's local runtime, in a process of its own with an empty home: the session reads the user's
`.bashrc` and gives that a second.

    python -P -m prorl_celery.bench.tools.swerex COUNT OUTPUT_SECONDS      what it took, as JSON

What the library copies inside is not counted; what its process reads is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import Any

from prorl_celery import folders
from prorl_celery.bench.report import BenchFailed
from prorl_celery.bench.tools.own_use import own_use
from prorl_celery.bench.tools.ways import COMMAND_SECONDS, COMMANDS, OUTPUT_COMMAND, SAYS, Output, Row
from prorl_celery.node.prctl import die_with_parent

STARTUP_SECONDS = 30.0


def swerex(row: Row, count: int, output_seconds: float) -> None:
    """Fill the row: `count` times each command, and ten megabytes unless `output_seconds` is 0. Raises `BenchFailed`.

    Ten megabytes that take longer than `output_seconds` leave the row's output empty.
    """
    me = os.getpid()
    with folders.temporary("bench") as own:
        home = str(own.path)
        try:
            told = subprocess.run(
                [sys.executable, "-P", "-m", __name__, str(count), str(output_seconds)],
                capture_output=True,
                text=True,
                timeout=STARTUP_SECONDS + len(COMMANDS) * count * COMMAND_SECONDS + 2 * output_seconds,
                check=False,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "TERM": "dumb", "LANG": "C.UTF-8", "HOME": home},
                cwd=home,
                preexec_fn=lambda: die_with_parent(me),
            )
        except subprocess.TimeoutExpired as error:
            raise BenchFailed(f"swe-rex took over {error.timeout:g} s") from error
    if told.returncode != 0:
        raise BenchFailed(f"swe-rex: {told.stderr[-500:]}")
    seen = json.loads(told.stdout.splitlines()[-1])
    row.start_ms, row.took_ms = seen["start_ms"], seen["took_ms"]
    if seen["output"] is not None:
        row.output = Output(**seen["output"])


def lacks_swerex() -> str | None:
    """Why SWE-ReX cannot be measured here; None when it can."""
    if importlib.util.find_spec("swerex") is None:
        return "SWE-ReX is not installed: pip install 'prorl-celery[bench]'"
    return None


async def _session(count: int, output_seconds: float) -> dict[str, Any]:
    from swerex.exceptions import CommandTimeoutError
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
    from swerex.runtime.local import LocalRuntime

    async def run(command: str, timeout: float) -> tuple[str, float]:
        began = time.perf_counter()
        seen = await runtime.run_in_session(BashAction(command=command, timeout=timeout))
        took = time.perf_counter() - began
        if seen.exit_code != 0 or seen.output.strip() != SAYS.get(command, seen.output.strip()):
            raise BenchFailed(f"swe-rex: `{command}` came to {str(seen)[-300:]}")
        return seen.output, took

    runtime = LocalRuntime()
    began = time.perf_counter()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=STARTUP_SECONDS))
    await run("true", COMMAND_SECONDS)
    found: dict[str, Any] = {"start_ms": (time.perf_counter() - began) * 1000, "output": None}
    found["took_ms"] = {
        command: [(await run(command, COMMAND_SECONDS))[1] * 1000 for _ in range(count)] for command in COMMANDS
    }
    if output_seconds:
        try:
            with own_use() as use:
                _, took = await run(OUTPUT_COMMAND, output_seconds)
        except CommandTimeoutError:
            return found
        found["output"] = {
            "seconds": took,
            "read_bytes": use.read_bytes,
            "copied_bytes": None,
            "grown_bytes": use.grown_bytes,
        }
    await runtime.close()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_session(int(sys.argv[1]), float(sys.argv[2])))))
