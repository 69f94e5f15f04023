"""Runs a program's cases in sandboxes, slice by slice.

A slice is as many cases as fit into some bytes and seconds, so that a job can be cancelled, nothing grows without
bound, and a program that stops its judge costs no more than a slice. The first is small: most wrong programs fail
there. A sandbox in which something may be left of a case is given up for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prorl_celery.errors import EvalError
from prorl_celery.grading.code.slices import Spoken, run_slice
from prorl_celery.sandbox.base import Sandbox

FIRST_SLICE, LARGEST_SLICE = 16, 2000
"""Cases."""
SLICE_BYTES = 8 << 20
SLICE_SECONDS = 5.0
SPARE_SECONDS = 40.0
"""What a slice may take beyond its seconds and its last case's limit: start, compilation's own limit aside, and end."""
COMPILE_SECONDS = 150.0
WALL_FACTOR, WALL_SPARE_SECONDS = 10.0, 10.0
"""How long a case may take on a machine that is too busy to give it the CPU that it may use."""
MOST_SANDBOXES = 4
"""A program that spoils so many has failed all further cases."""
NO_EXIT_CODE = 126
"""That of a case in which nothing was run to its end."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program and how each of its cases is run."""

    source: bytes
    language: str
    time_limit_seconds: float
    memory_limit_bytes: int
    output_limit_bytes: int
    entry: str | None = None
    """The function to call, where a case is a list of arguments in JSON."""
    arguments: tuple[str, ...] = ()
    crash_code: int = 1
    """The exit code after an exception that it does not catch."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a case gives to the program."""

    stdin: bytes
    files: tuple[tuple[str, bytes], ...] = ()

    @property
    def size(self) -> int:
        return len(self.stdin) + sum(len(data) for _, data in self.files) + 64


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a case."""

    number: int
    kind: str
    """A kind of failure, or empty."""
    why: str
    output: bytes
    seconds: float
    """Of wall-clock, but for the time that it waited for a CPU."""
    exit_code: int = 0


class Runner:
    """Runs a program's cases, in order. Close it."""

    def __init__(self, start: Callable[[], Sandbox], program: Program) -> None:
        self._start = start
        self._program = program
        self._sandbox: Sandbox | None = None
        self._spoilt = 0

    def run(self, cases: Sequence[Given], *, stop: bool) -> Iterator[list[Ran]]:
        """Slices of what came of the cases, none left out; with `stop`, none after the first that failed to run.

        Raises: `EvalError` when they could not be run by no fault of the program; `SandboxError`, and what the cancel
        signal raises.
        """
        at, size = 0, FIRST_SLICE
        while at < len(cases):
            if self._spoilt >= MOST_SANDBOXES:
                yield [self._failed(at, "not run", "the program ended its judge too often")]
                at += 1
                continue
            part = _slice(cases, at, size)
            size = min(2 * len(part) + FIRST_SLICE, LARGEST_SLICE)
            spoken = self._run_slice(part, at, stop)
            ran = [self._ran(frame.number, frame.head, frame.parts) for frame in spoken.frames]
            if spoken.unfit is not None:
                ran = [self._failed(number, "runtime error", spoken.unfit) for number in range(at, len(cases))]
            elif not spoken.over:
                ran.append(self._failed(at + len(ran), "runtime error", "it ended or stopped its judge"))
            if not (spoken.over and spoken.clear):
                self.close()
                self._spoilt += 1
            at += len(ran)
            yield ran
            if stop and any(one.kind for one in ran):
                return

    def close(self) -> None:
        """End the sandbox. Idempotent."""
        if self._sandbox is not None:
            self._sandbox.stop()
            self._sandbox = None

    def _run_slice(self, part: Sequence[Given], first: int, stop: bool) -> Spoken:
        program = self._program
        if self._sandbox is None:
            self._sandbox = self._start()
        wall = program.time_limit_seconds * WALL_FACTOR + WALL_SPARE_SECONDS
        head = {
            "limits": {
                "cpu_seconds": program.time_limit_seconds,
                "wall_seconds": wall,
                "memory_bytes": program.memory_limit_bytes,
                "output_bytes": program.output_limit_bytes,
            },
            "language": program.language,
            "entry": program.entry,
            "crash_code": program.crash_code,
            "arguments": program.arguments,
            "first": first,
            "seconds": SLICE_SECONDS,
            "bytes": SLICE_BYTES,
            "stop": stop,
            "cases": [[name for name, _ in case.files] for case in part],
        }
        parts = [program.source]
        for case in part:
            parts += [case.stdin, *(data for _, data in case.files)]
        seconds = SLICE_SECONDS + wall + SPARE_SECONDS + (COMPILE_SECONDS if program.language != "python" else 0.0)
        return run_slice(self._sandbox, "answers", head, parts, seconds=seconds)

    def _ran(self, number: int, head: Any, parts: tuple[bytes, ...]) -> Ran:
        said, output = parts
        kind, code = head["kind"], head["code"]
        if kind == "starved":
            raise EvalError(f"case {number} was not given what it may use in {head['wall']:.0f} s: a busy machine")
        program = self._program
        said_text = said.decode("utf-8", "replace")
        limit = f"{program.time_limit_seconds:g} s"
        why = {
            "": "",
            "crowded": f"with all that it started it did not end in {head['wall']:.0f} s",
            "idle": f"it waited for longer than {limit}",
            "time limit": f"it took {max(head['cpu'], 0.0):.2f} s of {limit}",
            "memory limit": f"it used {head['memory'] >> 20} MB of {program.memory_limit_bytes >> 20}",
            "output limit": f"it printed more than {program.output_limit_bytes} bytes",
        }[kind]
        if kind in ("idle", "crowded"):
            kind = "time limit"
        if not kind and code:
            kind, why = "runtime error", f"it ended with {_exit(code)}: {said_text.strip()[-1000:]}"
            if "MemoryError" in said_text[-200:] or "std::bad_alloc" in said_text:
                kind = "memory limit"
        return Ran(number, kind, why, output, head["spent"], code)

    def _failed(self, number: int, kind: str, why: str) -> Ran:
        return Ran(number, kind, why, b"", 0.0, NO_EXIT_CODE)


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _slice(cases: Sequence[Given], at: int, most: int) -> Sequence[Given]:
    """Cases from one on: at least one, at most so many, and no more bytes than go into a slice."""
    end, size = at, 0
    while end < len(cases) and end - at < most and (end == at or size + cases[end].size <= SLICE_BYTES):
        size += cases[end].size
        end += 1
    return cases[at:end]
