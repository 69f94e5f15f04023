"""Running an instance's tests in a sandbox, with a log of bounded size that is read when they have ended."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from shlex import quote
from time import monotonic

from prorl_celery.errors import EvalError, SandboxError
from prorl_celery.grading.swe.form import SweLimits
from prorl_celery.sandbox.base import Sandbox

READ_SECONDS = 60.0
SHORTEN = """size=$(stat -c %s {log}) && half={half} && if [ "$size" -gt $((half * 2)) ]; then
tail -c "$half" {log} | dd of={log} bs=65536 oflag=seek_bytes seek="$half" conv=notrunc status=none &&
truncate -s $((half * 2)) {log}; fi"""
"""Cut the middle out of a log, in its place: the disk may be full of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """How a run of tests went."""

    log: str
    """What it printed, both ways; head and tail of it where that was more than the limit."""
    exit_code: int | None
    """None when it was ended by its time-out."""
    seconds: float

    __test__ = False

    @property
    def timed_out(self) -> bool:
        return self.exit_code is None

    @property
    def end(self) -> str:
        """Its last lines, for a message."""
        return self.log.strip()[-1500:]


class Clock:
    """What is left of a grading's time, and what its parts took."""

    def __init__(self, limits: SweLimits) -> None:
        self._limits = limits
        self._last = monotonic()
        self._end = self._last + limits.total_seconds
        self.seconds: dict[str, float] = {}

    def within(self, seconds: float) -> float:
        """So many seconds, or what is left. Raises: `EvalError` when nothing is."""
        left = self._end - monotonic()
        if left <= 0:
            raise EvalError(f"the grading did not end in {self._limits.total_seconds:g} s")
        return min(seconds, left)

    def note(self, part: str) -> None:
        """What was done since the last note was this part."""
        now = monotonic()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    @property
    def apply(self) -> float:
        """Of a step that prepares or applies something. Raises: `EvalError`."""
        return self.within(self._limits.apply_seconds)

    @property
    def tests(self) -> float:
        """Of the tests. Raises: `EvalError`."""
        return self.within(self._limits.test_seconds)


def run_tests(sandbox: Sandbox, script: str, *, workdir: str, timeout: float, output_bytes: int) -> TestRun:
    """Run a bash script in `workdir`, for `timeout` seconds at most, and read what it printed.

    The log is of this run alone: what came before it is no part of it, and what is started behind cannot add to it once
    it is read. But it is a file that the tests' processes write, and code under test may write into it what it likes.
    Raises: `EvalError` when no log can be read; `SandboxError`, what the cancel signal raises.
    """
    token = secrets.token_hex(8)
    path, log = f"/workspace/.run-{token}.sh", f"/workspace/.log-{token}"
    try:
        sandbox.files.write(path, script.encode("utf-8", "surrogatepass"))
    except OSError as error:
        raise SandboxError(f"the tests' script could not be written: {error}") from error
    started = monotonic()
    ran = sandbox.shell.run(f"(cd {quote(workdir)} && exec bash {path} >>{log} 2>&1)", timeout=timeout)
    seconds = monotonic() - started
    half = output_bytes // 2
    cut = sandbox.shell.run(SHORTEN.format(log=log, half=half), timeout=READ_SECONDS)
    try:
        data = sandbox.files.read(log, limit_bytes=half * 2)
    except OSError as error:
        raise EvalError(f"the tests' output cannot be read: {error}: {cut.output[-500:]}") from error
    exit_code = None if ran.timed_out else ran.exit_code
    return TestRun(log=data.decode("utf-8", "replace"), exit_code=exit_code, seconds=seconds)
