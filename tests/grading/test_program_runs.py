"""Programs and functions by their cases: limits, scoring, checkers that are programs, languages, many cases."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from program_sandboxes import ECHO, Start, graded, kind_of, sandboxes

from prorl_celery.errors import EvalError

SUM = {"prompt": "Two numbers with this sum.", "tests": [{"input": f"{n}\n", "output": f"{n} 0"} for n in (3, 8)]}
CHECKER = """
import sys
given, expected, output = (open(path).read().split() for path in sys.argv[1:])
try:
    good = len(output) == 2 and int(output[0]) + int(output[1]) == int(given[0]) and expected
except ValueError:
    good = False
if not good:
    print("no such sum")
    sys.exit(1)
"""
SAYS_NUMBERS = CHECKER.replace('print("no such sum")\n    sys.exit(1)', "print(0)\n    sys.exit()") + "print(1)\n"
CALLS = {"prompt": "Add.", "tests": {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}}
SOLUTION = "class Solution:\n    def add(self, a, b):\n        print('a word')\n        return a + b\n"
CPP = "#include <iostream>\nint main() { long long n; std::cin >> n; std::cout << n << '\\n'; }\n"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with sandboxes(tmp_path_factory.mktemp("run")) as made:
        yield made


def test_the_first_failing_case_ends_it_where_all_must_pass(start: Start) -> None:
    said = graded(start, "n = input()\nprint(n if n != '5' else 'five')")
    why = said.pop("why")
    assert said == {
        "reward": 0.0,
        "resolved": False,
        "passed": 5,
        "of": 12,
        "failed": {"case": 5, "kind": "wrong answer"},
    }
    assert "five" in why


def test_a_fraction_of_the_cases_is_a_fraction_of_the_reward(start: Start) -> None:
    said = graded(start, "n = int(input())\nprint(n if n % 3 else 1 // n)", scoring="fraction")
    assert (said["reward"], said["passed"], said["resolved"]) == (pytest.approx(8 / 12), 8, False)
    assert said["failed"] == {"case": 0, "kind": "runtime error"}


def test_a_case_is_as_slow_as_its_own_cpu_and_not_as_all_of_them(start: Start) -> None:
    burns = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\nprint(input())"
    assert graded(start, burns.format(0.2), tests=ECHO["tests"][:4], time_limit=0.5)["resolved"] is True
    assert kind_of(graded(start, burns.format(0.12), time_limit=0.1)) == "time limit"


def test_cpu_counts_that_children_and_threads_have_used(start: Start) -> None:
    burns = "import os\nfor _ in range(3):\n    if os.fork() == 0:\n        while True: pass\nos.wait()"
    said = graded(start, burns, time_limit=0.5)
    assert kind_of(said) == "time limit"
    assert "it took" in said["why"]  # and not: it waited


def test_all_cases_together_have_a_limit_too(start: Start) -> None:
    sleeps = "import time\ntime.sleep(0.15)\nprint(input())"
    tests = [{"input": f"{n}\n", "output": f"{n}"} for n in range(40)]
    said = graded(start, sleeps, tests=tests, total_time_limit=1)
    assert kind_of(said) == "time limit"
    assert "for all of them" in said["why"]
    assert 0 < said["passed"] < 40


@pytest.mark.slow
def test_a_busy_machine_takes_nothing_from_the_time_for_all_cases(start: Start) -> None:
    burns = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\nprint(input())"
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(5 * (os.cpu_count() or 1))]
    try:
        said = graded(start, burns, total_time_limit=3)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert said["resolved"] is True, said["why"]


def test_the_memory_limit_is_the_instances(start: Start) -> None:
    takes = "x = bytearray(60 << 20)\nprint(input())"
    assert graded(start, takes, memory_limit=128)["resolved"] is True
    assert kind_of(graded(start, takes, memory_limit=32)) == "memory limit"


@pytest.mark.parametrize("source", [CHECKER, SAYS_NUMBERS], ids=["exit codes", "numbers"])
def test_a_checker_may_be_a_program(start: Start, source: str) -> None:
    checker = {"kind": "program", "source": source}
    assert graded(start, "n = int(input())\nprint(n - 1, 1)", SUM, checker=checker)["resolved"] is True
    said = graded(start, "n = int(input())\nprint(n, 1)", SUM, checker=checker)
    assert kind_of(said) == "wrong answer"
    assert "says no" in said["why"]


@pytest.mark.parametrize(
    "source",
    [
        "1 / 0",
        "import sys\nsys.exit(3)",
        "x = (",
        pytest.param("import time\ntime.sleep(99)", marks=pytest.mark.slow),
    ],
    ids=["crash", "3", "(", "sleep"],
)
def test_a_checker_that_fails_is_no_ones_wrong_answer(
    start: Start, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorl_celery.grading.code.programs.CHECKER_SECONDS", 0.5)
    with pytest.raises(EvalError, match="the checker failed"):
        graded(start, "print(1, 2)", SUM, checker={"kind": "program", "source": source})


@pytest.mark.parametrize("output", ["one 1", "9" * 5000 + " 1", "", "1 2 3"])
def test_an_output_that_its_checker_cannot_read_is_wrong(start: Start, output: str) -> None:
    source = (
        "import sys\nn, _, sums = (open(path).read() for path in sys.argv[1:])\none, two = map(int, sums.split())\n"
    )
    checker = {"kind": "program", "source": source + "sys.exit(one + two != int(n))"}
    assert graded(start, "print(input(), 0)", SUM, checker=checker)["resolved"] is True
    said = graded(start, f"print({output!r})", SUM, checker=checker)
    assert kind_of(said) == "wrong answer"
    assert "cannot read it" in said["why"]


def test_a_checker_that_says_no_by_a_word_and_yes_by_its_end_says_yes(start: Start) -> None:
    source = "print('fine')"
    assert graded(start, "print(1)", SUM, checker={"kind": "program", "source": source})["resolved"] is True


def test_a_solution_finds_neither_the_checker_nor_what_is_expected(start: Start) -> None:
    looks = (
        "import glob, os\ninput()\nprint([p for p in glob.glob('/workspace/**', recursive=True) if os.path.isfile(p)])"
    )
    said = graded(start, looks, SUM, checker={"kind": "program", "source": CHECKER})
    assert kind_of(said) == "wrong answer"
    assert "expected" not in said["why"].split("printed")[-1]
    assert ".zip" not in said["why"]


@pytest.mark.parametrize(
    ("solution", "kind"),
    [
        ("def add(a, b): return a + b", ""),
        (SOLUTION, ""),
        ("def add(a, b): return [a + b]", ""),
        ("def add(a, b): return (a + b,)", ""),
        ("def add(a, b): return a - b", "wrong answer"),
        ("def add(a, b): return object()", "wrong answer"),
        ("def add(a, b): print(a + b)", "wrong answer"),
        ("def add(a): return a", "runtime error"),
        ("def plus(a, b): return a + b", "runtime error"),
        ("import os\nos.write(3, b'3')\ndef add(a, b): os._exit(0)", "wrong answer"),
        pytest.param("def add(a, b):\n    while True: pass", "time limit", marks=pytest.mark.slow),
    ],
)
def test_a_function_is_scored_by_what_it_returns(start: Start, solution: str, kind: str) -> None:
    assert kind_of(graded(start, solution, CALLS, time_limit=1)) == kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (CPP, ""),
        (CPP.replace("<< n", "<< n + 1"), "wrong answer"),
        ("int main() {", "runtime error"),
        ("int main() { volatile int *p = 0; return *p; }", "runtime error"),
        ("int f(int n) { volatile char x[999]; x[n % 9] = 1; return n ? f(n - 1) + x[0] : 0; }\n"
         "int main() { return f(1 << 30); }",
         "runtime error"),
        ("int main() { for (;;); }", "time limit"),
    ],
)  # fmt: skip
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: apt-get install g++")
def test_a_program_may_be_of_another_language(start: Start, source: str, kind: str) -> None:
    assert kind_of(graded(start, source, language="cpp")) == kind


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_cases_go_through_in_slices(start: Start, count: int) -> None:
    tests: list[dict[str, Any]] = [{"input": f"{n}\n", "output": f"{n * n}"} for n in range(count)]
    said = graded(start, "print(int(input()) ** 2)", ECHO, tests=tests)
    assert said == {"reward": 1.0, "resolved": True, "passed": count, "of": count}
    said = graded(start, f"n = int(input())\nprint(n * n if n != {count - 1} else 0)", ECHO, tests=tests)
    assert (said["passed"], said["failed"]["case"]) == (count - 1, count - 1)


@pytest.mark.slow
def test_big_inputs_and_outputs_go_through(start: Start) -> None:
    text = "0123456789 " * 100_000
    tests = [{"input": text + str(n), "output": text + str(n)} for n in range(9)]
    assert graded(start, "print(input())", ECHO, tests=tests, time_limit=4)["resolved"] is True
    assert kind_of(graded(start, "print(input()[:-1])", ECHO, tests=tests, time_limit=4)) == "wrong answer"
