"""Hidden tests that are Python: assertions about a function, in a process that the function cannot reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from program_sandboxes import Start, graded, kind_of, sandboxes

from prorl_celery.errors import EvalError

MBPP = {
    "text": "Write functions for the square of a number, and for those of many.",
    "test_setup_code": "import math",
    "test_list": [
        "assert square(3) == 9",
        "assert math.isclose(square(0.5), 0.25)",
        "assert squares([1, 2]) == [1, 4] and squares(()) == []",
    ],
    "time_limit": 1,
}
RIGHT = "def square(n): return n * n\ndef squares(numbers): return [square(n) for n in numbers]\n"
CHECK = {"prompt": "Any text.", "entry_point": "f", "test": "def check(c):\n    assert c(1) == 2\n"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with sandboxes(tmp_path_factory.mktemp("run")) as made:
        yield made


def test_assertions_are_cases(start: Start) -> None:
    assert graded(start, RIGHT, MBPP) == {"reward": 1.0, "resolved": True, "passed": 3, "of": 3}
    said = graded(start, RIGHT.replace("return n * n", "return n * n if n == 3 else 0"), MBPP)
    assert (said["passed"], said["failed"]) == (1, {"case": 1, "kind": "wrong answer"})


@pytest.mark.parametrize(
    ("square", "kind"),
    [
        ("return None", "wrong answer"),
        ("raise ValueError(n)", "runtime error"),
        ("import os; os._exit(0)", "runtime error"),
        ("import os; os.kill(os.getppid(), 9); os._exit(0)", "runtime error"),
        ("raise SystemExit", "runtime error"),
        pytest.param("\n    while True: pass", "time limit", marks=pytest.mark.slow),
        ("return object()", "runtime error"),
        pytest.param("return 'x' * (20 << 20)", "output limit", marks=pytest.mark.slow),
        ("return bytearray(100 << 30)", "runtime error"),
    ],
)
def test_each_assertion_fails_by_itself(start: Start, square: str, kind: str) -> None:
    bad = RIGHT.replace("def square(n): return n * n", f"def square(n):\n    if n == 3: {square}\n    return n * n")
    if square.startswith("\n"):
        bad = RIGHT.replace("return n * n", "\n    while n == 3: pass\n    return n * n")
    said = graded(start, bad, MBPP, scoring="fraction")
    assert kind_of(said) == kind, said["why"]
    survives = "getppid" not in square
    assert said["passed"] == (2 if survives else 0)


SLOW = pytest.mark.slow
FORKS = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"


@pytest.mark.parametrize(
    "source",
    [
        *("", "def f(:", "f = 1", "raise SystemExit", "import os\nos._exit(0)", "\0"),
        pytest.param("while True: pass", marks=SLOW),
        pytest.param(FORKS, marks=SLOW),
        "import sys\nsys.stdout.write('the cases begin')\nprint('x' * 100)",
        "def f(n):\n    for _ in range(10**6): print('x' * 1000)\n    return 0",
        "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\ndef f(n): return 1",
    ],
)
def test_a_function_that_is_none_fails(start: Start, source: str) -> None:
    said = graded(start, source, CHECK)
    assert (said["reward"], said["passed"], said["of"]) == (0.0, 0, 1)


@pytest.mark.parametrize(
    "test",
    [
        "def check(c):\n    assert c(object()) == 2\n",
        "def check(c):\n    yield from (c for\n",
        "raise SystemExit(0)",
        "import sys\nsys.exit(99)",
        "no = such + thing",
        "x = f(1)\ndef check(c): pass",
    ],
)
def test_tests_that_cannot_be_run_are_no_ones_wrong_answer(start: Start, test: str) -> None:
    with pytest.raises(EvalError, match="could not be run"):
        graded(start, "def f(n): return n + 1", CHECK, test=test)


def test_a_bare_except_in_the_tests_hides_no_failure(start: Start) -> None:
    test = "def check(c):\n    try:\n        c(1)\n    except:\n        pass\n"
    assert graded(start, "def f(n): return n", CHECK, test=test)["resolved"] is True
    assert graded(start, "import os\ndef f(n): os._exit(0)", CHECK, test=test)["resolved"] is False


SEARCHES = r"""
import ctypes, os, re
ctypes.CDLL(None).prctl(4, 1)  # let me look into myself
def f(n):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps, memory = open(f"/proc/{pid}/maps").read(), open(f"/proc/{pid}/mem", "rb", 0)
        except OSError:
            continue
        for low, high in re.findall(r"([0-9a-f]+)-([0-9a-f]+) rw", maps):
            try:
                memory.seek(int(low, 16))
                found = re.search(rb"pear-[0-9]+", memory.read(int(high, 16) - int(low, 16)))
            except (OSError, ValueError, OverflowError):
                continue
            if found: return found[0].decode()
"""


def test_no_memory_that_the_function_may_read_holds_what_is_expected(start: Start) -> None:
    for test in ("def check(c):\n    assert c(1) == 'pear-7391'\n", None):
        fields: dict[str, Any] = {"test": test, "test_list": ["assert f(1) == 'pear-7391'"]}
        assert graded(start, SEARCHES, CHECK, **fields)["resolved"] is False


def test_an_iterator_is_what_it_yields_and_no_list(start: Start) -> None:
    fields: dict[str, Any] = {"test_list": ["assert list(f(3)) == [0, 1, 2]"], "test": None}
    lazy = "def f(n): yield from range(n)"
    assert graded(start, lazy, CHECK, **fields)["resolved"] is True
    assert graded(start, lazy, CHECK, **{**fields, "test_list": ["assert f(3) == [0, 1, 2]"]})["resolved"] is False
