"""Work with a limit on its processor time and memory, in a fork of this process.

For a process that may be forked: it has one thread, as a child of `ctx.in_child` has. Processor time is what counts, so
that a loaded machine is not taken for a slow answer; whoever waits has a deadline of his own.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Say = Callable[[Any], None]
"""Tells the process that waits one thing, which must be JSON."""

MOST_SAID_BYTES = 1 << 20
NO_MEMORY, TOO_DEEP, RAISED = 101, 102, 103
"""Exit codes of the fork."""
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that no fault of its own gives it, but for the first after too much processor time."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What bounded work said before it ended. `how`: why it did not come to its end; None when it did. `lost`: somebody
    else ended it, or the kernel short of memory, which says nothing of the work.
    """

    said: list[Any] = field(default_factory=list)
    how: str | None = None
    lost: bool = False


def bounded(work: Callable[[Say], None], *, cpu_seconds: int, memory_bytes: int) -> Ended:
    """Do `work` in a fork that ends after `cpu_seconds` of processor time or with `memory_bytes` more than it began
    with. Raises: `OSError` when there is no process or descriptor for it.
    """
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        os.close(reading)
        _work(work, writing, cpu_seconds, memory_bytes)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read(MOST_SAID_BYTES)
    _, status, used = os.wait4(pid, 0)
    # Its last line may have been cut off.
    said = [json.loads(line) for line in told.split(b"\n")[:-1]]
    code, spent = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    lost = -code in FROM_OUTSIDE and spent < cpu_seconds
    return Ended(said, _how(code, cpu_seconds, memory_bytes), lost)


def _work(work: Callable[[Say], None], pipe: int, cpu_seconds: int, memory_bytes: int) -> None:
    """Never returns."""
    code = RAISED
    try:
        # What is graded was written by a model: nothing here is for its eyes, should it find a way to look.
        os.environ.clear()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)

        def say(thing: Any) -> None:
            line = json.dumps(thing).encode() + b"\n"
            while line:
                line = line[os.write(pipe, line) :]

        work(say)
        code = 0
    except MemoryError:
        code = NO_MEMORY
    except RecursionError:
        code = TOO_DEEP
    finally:
        os._exit(code)


def _how(code: int, cpu_seconds: int, memory_bytes: int) -> str | None:
    if code == 0:
        return None
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it took more than {cpu_seconds} s of processor time"
    if code == NO_MEMORY:
        return f"it took more than {memory_bytes >> 20} MB of memory"
    if code == TOO_DEEP:
        return "it is nested too deeply"
    return f"it broke what reads it ({'exit code' if code > 0 else 'signal'} {abs(code)})"
