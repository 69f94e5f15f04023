"""The process that a vLLM server runs under, so that nothing of it outlives us.

vLLM is three processes and a tracker. Killed, its server leaves the engine and the worker running; told to end while it
starts, it goes on. So its parent is this small process, of the same process group, which waits by poll for a signal or
the server's end; then it gives the server a moment, kills what is left of the group, and removes the sockets, caches
and shared memory. It is told to end (SIGTERM) by its owner, or by the kernel when its owner dies.

    python -P -m prorl_celery.node.vllm.guard OWNER_PID SPEC_AS_JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from prorl_celery.node import prctl
from prorl_celery.node.signals import SignalPipe
from prorl_celery.node.vllm.process_group import end

GRACE_S = 6.0
"""An idle server ends within 3 s of SIGTERM; one that starts or hangs would not."""
LONGEST_POLL_S = 60.0


def guard(argv: list[str], environ: dict[str, str], scratch: Path) -> int:
    """Run a server till it ends or we are told to. Returns its exit code, 0 when we were told.

    `scratch` is emptied before and removed after. The caller leads a process group of its own and has one thread.
    """
    us = os.getpid()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True, mode=0o700)
    with SignalPipe(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD) as signals:
        server = subprocess.Popen(
            argv, env=environ, stdin=subprocess.DEVNULL, preexec_fn=lambda: prctl.die_with_parent(us)
        )
        try:
            told = _until_told(server, signals)
            if told:
                server.terminate()
                _until_ended(server, signals, time.monotonic() + GRACE_S)
        finally:
            end(os.getpgrp())
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(GRACE_S)
            shutil.rmtree(scratch, ignore_errors=True)
    return 0 if told else server.returncode or 1


def _until_told(server: subprocess.Popen[bytes], signals: SignalPipe) -> bool:
    while server.poll() is None:
        if {signal.SIGTERM, signal.SIGINT} & set(signals.wait(LONGEST_POLL_S)):
            return True
    return False


def _until_ended(server: subprocess.Popen[bytes], signals: SignalPipe, deadline: float) -> None:
    while server.poll() is None and (left := deadline - time.monotonic()) > 0:
        signals.wait(left)


def main(arguments: list[str]) -> int:
    """The program: ends with its owner."""
    owner, spec = int(arguments[0]), json.loads(arguments[1])
    prctl.die_with_parent(owner, signal.SIGTERM)
    return guard(spec["argv"], spec["environ"], Path(spec["scratch"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
