"""One process of a solution, from its fork to its end: limits, a fresh environment, then its code.

A Python solution runs in the fork itself, which spares the start of an interpreter; a binary is executed.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import signal
import sys
import types
from typing import Any, NamedTuple, NoReturn

STACK_BYTES = 112 << 20
"""Of a fork: the kernel keeps 128 MiB free below a stack, whatever the limit was when the interpreter started."""
BINARY_STACK_BYTES = 256 << 20
FILE_BYTES = 64 << 20
OPEN_FILES = 1024
HIGHEST_OF_OURS = 64
"""No descriptor of the process that forks is higher."""
RECURSION = 50_000
"""Python's own limit, a thousand, is below what solutions are commonly judged with."""
DATA_FACTOR = 2
DATA_SPARE_BYTES = 256 << 20
"""Memory that is set aside counts for the kernel's limit, but not for ours, which is about what was used."""
RLIMIT_MSGQUEUE = 12
"""Bytes of POSIX queues, which no folder shows to who would clear them away. Python has no name for it."""
UNFLUSHED = 120
"""The exit code of a Python whose last output could not be written."""


class Program(NamedTuple):
    """What is run for every case."""

    code: types.CodeType | None
    binary: int | None
    """A descriptor of an executable, where the language is compiled."""
    entry: str | None
    """A function to call with the arguments that standard input holds as JSON; what it returns is the output."""
    crash_code: int
    """Exit code after an exception that nobody caught."""


class Limits(NamedTuple):
    """Of one case."""

    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    output_bytes: int


def become(program: Program, limits: Limits, folder: str, arguments: list[str], fds: tuple[int, int, int]) -> NoReturn:
    """Be the solution, in `folder`, with these as standard input, output and error."""
    os.setsid()
    for target, source in enumerate(fds):
        os.dup2(source, target)
    kept = OPEN_FILES if program.binary is None else program.binary
    os.closerange(3, min(kept, HIGHEST_OF_OURS))
    os.closerange(kept + 1, HIGHEST_OF_OURS)
    os.environ.clear()
    os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", HOME=folder, TMPDIR=folder, LANG="C.UTF-8")
    os.chdir(folder)
    limit(limits, STACK_BYTES if program.binary is None else BINARY_STACK_BYTES)
    if program.binary is not None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(program.binary, ["solution", *arguments], dict(os.environ))
    sys.argv = ["solution.py", *arguments]
    run_python(program)


def limit(limits: Limits, stack_bytes: int = STACK_BYTES) -> None:
    """Limits of this process and of each that it starts."""
    seconds = int(limits.cpu_seconds) + 1
    data = max(limits.memory_bytes * DATA_FACTOR, limits.memory_bytes + DATA_SPARE_BYTES)
    for kind, soft in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_STACK, stack_bytes),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(kind, (value, value))


def run_python(program: Program) -> NoReturn:
    """Run the code as a main program would run, to the end of its threads and of its buffers."""
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8", errors="surrogateescape")
    answer = 1
    if program.entry is not None:
        answer = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding="utf-8", errors="surrogateescape")
    sys.stderr = io.TextIOWrapper(
        open(2, "wb", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    sys.setrecursionlimit(RECURSION)
    main = types.ModuleType("__main__" if program.entry is None else "solution")
    sys.modules[main.__name__] = main
    gc.enable()
    code = 0
    try:
        assert program.code is not None
        exec(program.code, main.__dict__)
        if program.entry is not None:
            value = call(main.__dict__, program.entry)
            with open(answer, "w", encoding="utf-8") as file:
                file.write(value)
    except SystemExit as error:
        code = exit_code(error)
    except BaseException as error:
        code = program.crash_code
        show(error)
    os._exit(_finish(code))


def call(space: dict[str, Any], entry: str) -> str:
    """Call a function, or a method of `Solution`, with the arguments on standard input; its answer as JSON."""
    arguments = json.loads(sys.stdin.buffer.read())
    owner = space.get("Solution")
    function = space[entry] if owner is None or not hasattr(owner, entry) else getattr(owner(), entry)
    return json.dumps(function(*arguments), default=plain)


def plain(value: Any) -> Any:
    """Something that JSON lacks, by what is nearest to it."""
    if isinstance(value, (set, frozenset, range, types.GeneratorType)):
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if hasattr(value, "__iter__") else str(value)


def exit_code(error: SystemExit) -> int:
    """What Python makes of `sys.exit(...)`."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 255
    sys.stderr.write(f"{error.code}\n")
    return 1


def show(error: BaseException) -> None:
    """The trace of an exception, if there is memory left for it."""
    try:
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__, limit=-8)
    except BaseException:
        os.write(2, type(error).__name__.encode() + b"\n")


def _finish(code: int) -> int:
    """Wait for threads and write what is buffered, as the end of an interpreter does."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
    except BaseException as error:
        show(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            code = code or UNFLUSHED
    return code
