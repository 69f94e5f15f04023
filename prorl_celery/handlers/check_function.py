"""Runs in an eval's sandbox: `check(candidate)` in one process, the candidate in another. No import of ours.

    python3 -I check_function.py SOLUTION TESTS ENTRY_POINT < proof

A solution that shared a process with its tests could read them, what they expect, and the proof of a pass, or change
what `==` or `abs` means to them. So the solution's process is forked before the tests and the proof are read, and only
Python literals pass: arguments one way, what came of the call the other. TESTS holds the literal `(prompt, test)`;
helpers that a test uses come from the prompt. The file is removed before the solution runs. The proof is printed when
the last test has passed, and is all that tells a pass.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

NOT_SCORED = 99
"""Exit code when the tests could not begin: nothing is said of the solution then."""
PR_SET_DUMPABLE = 4


def literal(value: Any) -> str:
    """A value as text that `ast.literal_eval` reads, containers and numbers of any subclass as plain ones."""
    if isinstance(value, float):
        return repr(float(value)).replace("inf", "1e999")
    if isinstance(value, dict):
        return "{" + "".join(f"{literal(key)}: {literal(item)}, " for key, item in value.items()) + "}"
    for kind, form in ((list, "[%s]"), (tuple, "(%s)"), (set, "{%s}"), (frozenset, "{%s}")):
        if isinstance(value, kind):
            items = "".join(literal(item) + ", " for item in value)
            return form % items if items or kind in (list, tuple) else "set()"
    for plain in (bool, int, str, bytes, complex):
        if isinstance(value, plain):
            return plain.__repr__(value)
    if value is None or value is Ellipsis:
        return repr(value)
    raise TypeError(f"{type(value).__name__} is no plain value")


def serve(calls: TextIO, answers: TextIO, solution: str, entry_point: str) -> None:
    """The solution's process: load it when told, then answer calls until there are no more."""
    if not calls.readline():
        return
    space: dict[str, Any] = {"__name__": "solution"}
    with open(solution, encoding="utf-8") as file:  # noqa: PTH123 - fewest imports, fastest start
        exec(compile(file.read(), solution, "exec"), space)
    candidate = space[entry_point]
    for line in calls:
        arguments, keywords = ast.literal_eval(line)
        try:
            answer = literal((None, candidate(*arguments, **keywords)))
        except Exception as error:  # noqa: BLE001 - the test may expect it
            traceback.print_exc()
            answer = literal((type(error).__name__, str(error)))
        answers.write(answer + "\n")
        answers.flush()


def candidate_at(calls: TextIO, answers: TextIO) -> Callable[..., Any]:
    """What the tests call."""

    def candidate(*arguments: Any, **keywords: Any) -> Any:
        calls.write(literal((arguments, keywords)) + "\n")
        calls.flush()
        line = answers.readline()
        if not line:
            raise SystemExit("the solution's process ended")
        raised, value = ast.literal_eval(line)
        if raised is None:
            return value
        kind = getattr(builtins, raised, RuntimeError)
        raise kind(value) if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError(value)

    return candidate


def prepared(tests: str, entry_point: str, candidate: Callable[..., Any]) -> Callable[..., Any]:
    """`check` of the hidden tests, which may call the candidate by its name too."""
    with open(tests, encoding="utf-8") as file:  # noqa: PTH123
        prompt, test = ast.literal_eval(file.read())
    os.unlink(tests)  # noqa: PTH108
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        helpers = compile(prompt, "prompt", "exec")
    except SyntaxError:
        pass  # it is prose
    else:
        exec(helpers, space)
    space[entry_point] = candidate
    exec(compile(test, "hidden tests", "exec"), space)
    check: Callable[..., Any] = space["check"]
    return check


def main() -> None:
    solution, tests, entry_point = sys.argv[1:]
    calls, call = os.pipe()
    answers, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(call)
        os.close(answers)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        serve(os.fdopen(calls), os.fdopen(answer, "w"), solution, entry_point)
        return
    os.close(calls)
    os.close(answer)
    requests = os.fdopen(call, "w")
    candidate = candidate_at(requests, os.fdopen(answers))
    try:
        # The solution is of the same user, and must not look into this process.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        proof = sys.stdin.readline().strip()
        check = prepared(tests, entry_point, candidate)
    except Exception:  # noqa: BLE001 - told by the exit code
        traceback.print_exc()
        sys.exit(NOT_SCORED)
    requests.write("go\n")
    requests.flush()
    check(candidate)
    os.kill(pid, 9)
    sys.stdout.write(f"\n{proof}\n")


if __name__ == "__main__":
    main()
