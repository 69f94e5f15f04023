"""How a source becomes what is run for every case."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from .child import Limits, Program

COMPILE = Limits(cpu_seconds=30.0, wall_seconds=120.0, memory_bytes=1 << 30, output_bytes=64 << 10)
COPY_BINARY = """
import subprocess, sys
compiled = subprocess.run(sys.argv[1:], stdout=sys.stderr)
if compiled.returncode == 0:
    sys.stdout.buffer.write(open("program", "rb").read())
sys.exit(compiled.returncode)
"""
BINARY_BYTES = 32 << 20
FLAGS = ("g++", "-O2", "-std=c++17", "-pipe", "-o", "program", "solution.cpp")


class Unfit(Exception):
    """The source is no program: what the compiler says."""


class Starved(Exception):
    """The machine was too busy to compile it."""


def prepare(head: dict[str, Any], source: bytes, run: Callable[..., Any]) -> Program:
    """Compile a source; `run` runs a case. Raises `Unfit`, `Starved`."""
    entry, crash_code = head["entry"], head["crash_code"]
    if head["language"] == "cpp":
        return Program(None, _binary(source, run), entry, crash_code)
    return Program(_compiled(source), None, entry, crash_code)


def _compiled(source: bytes) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(source.decode("utf-8-sig"), "solution.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise Unfit(f"{type(error).__name__}: {error}") from error


def _binary(source: bytes, run: Callable[..., Any]) -> int:
    """A descriptor of the executable. The compiler runs as a case does, with limits of its own."""
    script = Program(compile(COPY_BINARY, "compile", "exec"), None, None, 1)
    limits = COMPILE._replace(output_bytes=BINARY_BYTES)
    ended = run(script, limits, b"", [("solution.cpp", source)], list(FLAGS))
    if ended.kind in ("starved", "crowded"):
        raise Starved(
            f"the compiler was not given {COMPILE.cpu_seconds:g} s of CPU in {ended.wall:.0f} s: a busy machine"
        )
    if ended.kind or ended.code:
        raise Unfit(f"it does not compile ({ended.kind or ended.code}): {ended.said.decode('utf-8', 'replace')}")
    binary = os.memfd_create("program")
    with open(binary, "wb", closefd=False) as file:
        file.write(ended.output)
    return binary
