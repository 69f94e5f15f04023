"""Hidden tests of a function: the tests in this process, the solution in another.

    python3 -I CODE.zip functions SLICE ANSWERS

SLICE and ANSWERS are as in `answers`; a case is a `check(candidate)` or an assertion. A solution that shared a process
with its tests could read them, what they expect, and the key that signs a pass, or change what `==` or `abs` means to
them. So whatever forks the solution is forked itself before the tests and the key are read, nobody may look into this
process, and only plain values pass: arguments one way, what came of the call the other.
"""

from __future__ import annotations

import builtins
import os
import select
import time
import traceback
from typing import Any

from . import kernel
from .answers import BAD, ENDING_SECONDS, NOT_BEGUN, OVER, Answers
from .candidate import Nursery
from .plain import dump, load
from .wire import receive

LOAD_SECONDS = 10.0
LOOK_SECONDS = 0.25
"""Between two looks at what the solution has used."""
IDLE_SPARE_SECONDS = 1.0
WALL_FACTOR, WALL_SPARE_SECONDS = 10.0, 10.0
"""How long a machine that is too busy may take to give the solution its CPU."""
OURS = 2
"""Processes below this one that no solution has started: the nursery's, and its own."""
ANSWER_BYTES = 16 << 20
SAID_CHARS = 2000


class Failure(BaseException):
    """The solution failed a case by something that no test may catch."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(kind, said)
        self.kind = kind
        self.said = said


class BadTests(BaseException):
    """The tests themselves are wrong, or this machine is too busy for them."""


class Budget:
    """The time of a case: CPU that the solution uses, with all that it started, or time in which neither it nor the
    tests want any.
    """

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid = pid
        self._seconds = seconds
        self._used = self._cpu_seconds()
        self._began = self._now()

    def check(self) -> None:
        """Raises `Failure` when it is used up, `BadTests` when the machine has not let it be used."""
        wall, mine, its = (now - then for now, then in zip(self._now(), self._began))
        now = self._cpu_seconds()
        cpu = sum(used - self._used.get(pid, 0.0) for pid, used in now.items())
        if cpu > self._seconds:
            raise Failure("time limit", f"it took {cpu:.1f} s of {self._seconds:g} s")
        if wall - mine - max(its, cpu) > self._seconds + IDLE_SPARE_SECONDS:
            raise Failure("time limit", f"it waited for longer than {self._seconds:g} s")
        if wall > WALL_FACTOR * self._seconds + WALL_SPARE_SECONDS:
            if len(now) > OURS:
                raise Failure("time limit", f"with all that it started it did not end in {wall:.0f} s")
            raise BadTests(f"the machine is too busy: {wall:.0f} s have passed, and {cpu:.1f} s of CPU")

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), kernel.busy_seconds(os.getpid()), kernel.busy_seconds(self._pid)

    def _cpu_seconds(self) -> dict[int, float]:
        """Of each process below this one: what the solution started may have left it."""
        return {pid: kernel.cpu_seconds(pid) for pid in kernel.descendants(os.getpid())}


class Candidate:
    """The solution's process as the tests see it: functions to call. One that died is replaced for the next case."""

    def __init__(self, nursery: Nursery, names: list[str]) -> None:
        self._nursery = nursery
        self._pid = 0
        self._loaded = False
        self._calls = self._answers = -1
        self._buffer = b""
        self.failure: Failure | None = None
        self.functions = {name: self._function(name) for name in names}

    def begin(self, seconds: float) -> None:
        """Before a case: see that a process is there, with so much time to spend."""
        self.failure = None
        self.start()
        if not self._loaded:
            self._budget = Budget(self._pid, LOAD_SECONDS)
            self._ask(b"go\n")
            self._loaded = True
        self._budget = Budget(self._pid, seconds)

    def start(self) -> None:
        """See that there is a process. It loads nothing yet. Raises `OSError`."""
        if not self._pid:
            self._buffer, self._loaded = b"", False
            self._pid, self._calls, self._answers = self._nursery.start()

    def end(self) -> None:
        """End its process."""
        if self._pid:
            os.close(self._calls)
            os.close(self._answers)
            self._nursery.end(self._pid)
            self._pid = 0

    def _function(self, name: str) -> Any:
        def candidate(*arguments: Any, **keywords: Any) -> Any:
            try:
                call = dump((name, arguments, keywords))
            except TypeError as error:
                raise BadTests(f"an argument cannot be passed: {error}") from error
            raised, value = self._ask(call.encode() + b"\n")
            if raised is None:
                return value
            kind = getattr(builtins, raised, RuntimeError)
            raise kind(value) if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError(value)

        candidate.__name__ = name
        return candidate

    def _ask(self, call: bytes) -> Any:
        if self.failure is not None:
            raise self.failure
        try:
            return self._exchange(memoryview(call))
        except Failure as failure:
            self.failure = failure
            self.end()
            raise
        except OSError as error:
            self.failure = Failure("runtime error", "the solution's process ended")
            self.end()
            raise self.failure from error

    def _exchange(self, call: memoryview) -> Any:
        while b"\n" not in self._buffer:
            writing = [self._calls] if call else []
            readable, writable, _ = select.select([self._answers], writing, [], LOOK_SECONDS)
            if not readable and not writable:
                self._budget.check()
            if writable:
                call = call[os.write(self._calls, call[:4096]) :]
            if readable:
                data = os.read(self._answers, 1 << 20)
                if not data:
                    raise Failure("runtime error", "the solution's process ended")
                self._buffer += data
                if len(self._buffer) > ANSWER_BYTES:
                    raise Failure("output limit", "a call returned too much")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            kind, value = load(line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
            raise Failure("runtime error", "a call returned what cannot be read") from error
        if kind == "cannot be loaded":
            raise Failure("runtime error", str(value))
        return kind, value


def prepared(head: dict[str, Any], candidate: Candidate) -> list[Any]:
    """The cases, as functions without arguments. Raises whatever the tests raise."""
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        helpers = compile(head["helpers"], "prompt", "exec")
    except SyntaxError:
        pass  # it is prose
    else:
        exec(helpers, space)
    space.update(candidate.functions)
    exec(compile(head["test"], "hidden tests", "exec"), space)
    if head["asserts"] is None:
        check = space["check"]
        function = next(iter(candidate.functions.values()))
        return [lambda: check(function)]
    codes = [compile(text, f"test {number}", "exec") for number, text in enumerate(head["asserts"])]
    return [lambda code=code: exec(code, dict(space)) for code in codes]


def outcome(case: Any, candidate: Candidate, seconds: float) -> tuple[str, str]:
    """What came of a case: a kind of failure, empty for a pass, and what is said of it. Raises `BadTests`."""
    try:
        candidate.begin(seconds)
        case()
    except Failure as failure:
        return failure.kind, failure.said
    except BadTests:
        raise
    except AssertionError:
        return "wrong answer", traceback.format_exc(limit=-3)[-SAID_CHARS:]
    except BaseException:  # the candidate's, or what its answer led to
        return "runtime error", traceback.format_exc(limit=-3)[-SAID_CHARS:]
    if candidate.failure is not None:  # a test has caught it all the same
        return candidate.failure.kind, candidate.failure.said
    return "", ""


def main(slice_path: str, answers_path: str) -> int:
    """Run the cases; the first alone decides where the head says `stop`."""
    kernel.hide()
    kernel.inherit_orphans()
    try:
        answers = Answers(answers_path)
        nursery = Nursery(os.path.dirname(slice_path))
        with open(slice_path, "rb") as file:
            head, (source,) = receive(file)
        os.unlink(slice_path)
        answers.sign_with(bytes.fromhex(head["key"]))
        nursery.take(source, head["limits"])
        candidate = Candidate(nursery, head["names"])
        cases = prepared(head, candidate)
        candidate.start()
        answers.begin()
        for number, case in enumerate(cases):
            kind, said = outcome(case, candidate, head["seconds"])
            answers.write(number, {"kind": kind}, said.encode("utf-8", "replace"))
            if kind and head["stop"]:
                break
    except BadTests as error:
        answers.write(BAD, {"why": str(error)})
        return NOT_BEGUN
    except Exception:  # of the tests, or of this machine; the solution's are all caught above
        traceback.print_exc(limit=-3)
        return NOT_BEGUN
    candidate.end()
    gone, _ = kernel.end_all(ENDING_SECONDS)
    answers.write(OVER, {"done": len(cases), "clear": gone})
    answers.close()
    return 0
