"""Run one program to its end: its output into a log and line by line to whoever watches, within a deadline.

For steps of an installation, from a process without threads. The program ends when we do, however we end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from prorl_celery.node import prctl

TAIL_LINES = 12
LINE_BYTES = 1 << 20
GRACE_S = 5.0


class StepFailed(Exception):
    """A step failed or overran its time. `output` holds its last lines."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


def run_step(
    what: str,
    argv: Sequence[str],
    *,
    log: Path,
    timeout: float,
    environ: Mapping[str, str],
    line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run `argv` to its end, within `timeout` seconds; `line` gets each line of its output.

    Raises `StepFailed`, with the line that most looks like the reason.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    us = os.getpid()
    with log.open("ab") as written:
        written.write(f"\n{time.strftime('%F %T')} {what}: {' '.join(argv)}\n".encode())
        written.flush()
        process = subprocess.Popen(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=lambda: prctl.die_with_parent(us, signal.SIGKILL),
        )
        with _ended(process):
            for text in _lines(process, deadline=time.monotonic() + timeout):
                if text is None:
                    raise StepFailed(f"{what} took longer than {timeout:.0f} s", "\n".join(tail))
                written.write(text.encode() + b"\n")
                tail.append(text)
                line(text)
    if process.returncode != 0:
        raise StepFailed(f"{what} failed: {_reason(tail, process.returncode)}", "\n".join(tail))


def _lines(process: subprocess.Popen[bytes], *, deadline: float) -> Iterator[str | None]:
    """Its output until it closes it; None once the deadline has passed."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    held = b""
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(process.stdout.fileno(), 65536)
        whole = (held + piece).replace(b"\r", b"\n").split(b"\n")
        held = whole.pop()[-LINE_BYTES:]
        yield from (part.decode(errors="replace") for part in whole if part)
        if not piece:
            if held:
                yield held.decode(errors="replace")
            if not _ends_by(process, max(deadline, time.monotonic() + GRACE_S)):
                break
            return
    yield None


def _ends_by(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Whether it ends by then. It is not reaped, so that its group stays its own until it was killed."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """See that the process and its group are gone when the block is left."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(GRACE_S)
        if process.stdout is not None:
            process.stdout.close()


def _reason(tail: Sequence[str], code: int) -> str:
    errors = [text for text in tail if text.startswith(("ERROR", "error", "OSError")) or "Error:" in text]
    return (errors or list(tail) or [f"exit code {code}"])[-1].strip()
