"""The test that must fail behind an instance's own: which commands take it, and what a log says of it."""

from __future__ import annotations

import pytest

from prorl_celery.grading.swe.bench import END, START, framed
from prorl_celery.grading.swe.bench_canary import Canary, canary_beside
from prorl_celery.grading.swe.bench_specs import COMMANDS

CANARY = Canary(path="tests/test_abcdefghij.py", name="abcdefghij")
NOT_PYTESTS = ("django/django", "sympy/sympy", "python/mypy")


@pytest.mark.parametrize("repository", COMMANDS)
def test_the_known_commands_of_pytest_take_it(repository: str) -> None:
    made = CANARY.added(f"{COMMANDS[repository][0]} tests/test_x.py")
    assert (made is None) == (repository in NOT_PYTESTS)
    assert made is None or made.endswith(" tests/test_x.py tests/test_abcdefghij.py")


@pytest.mark.parametrize(
    "command",
    ["make test", "pytest -k a x.py", "pytest x.py | tee log", "pytest -x x.py", "cd a; pytest x.py", "pytest x.py\nls",
     "pytest -m slow x.py", "pytest --maxfail=1 x.py", "npm test", "pytest 'a(b).py'", ""],
)  # fmt: skip
def test_others_do_not(command: str) -> None:
    assert CANARY.added(command) is None


@pytest.mark.parametrize(
    "command", ["pytest x.py", "PYTHONHASHSEED=0 python -W ignore -m pytest -rA x.py", "python3 -m pytest x.py::T::t"]
)  # fmt: skip
def test_pytest_may_be_called_by_python(command: str) -> None:
    assert CANARY.added(command) == f"{command} tests/test_abcdefghij.py"


def test_it_stands_beside_the_tests_under_a_name_of_its_own() -> None:
    one, other = canary_beside(["doc/a.txt", "x/y/test_a.py", "data.json"]), canary_beside(["test_a.py"])
    assert one.path == f"x/y/test_{one.name}.py"
    assert other.path == f"test_{other.name}.py"
    assert one.name != other.name
    assert "/" not in canary_beside(["a.json"]).path


@pytest.mark.parametrize(
    ("log", "heard"),
    [
        ("PASSED a.py::b\nFAILED tests/test_abcdefghij.py::test_abcdefghij - assert\n", "failed"),
        ("tests/test_abcdefghij.py::test_abcdefghij \x1b[31mFAILED\x1b[0m [100%]\n", "failed"),
        ("PASSED tests/test_abcdefghij.py::test_abcdefghij\n", "passed"),
        ("tests/test_abcdefghij.py .\n", None),
        ("FAILED a.py::b\n", None),
        ("", None),
    ],
)
def test_what_became_of_it_is_in_the_log(log: str, heard: str | None) -> None:
    assert CANARY.heard(log) == heard
    assert "abcdefghij" not in CANARY.without(log)


def test_a_script_s_one_command_of_pytest_takes_it() -> None:
    script = f"set -x\n: '{START}'\npytest -rA x.py\n: '{END}'\nls\n"
    assert "pytest -rA x.py tests/test_abcdefghij.py\ncode=$?" in framed(script, "token", CANARY)
    two = script.replace("pytest", "ls\npytest")
    assert framed(two, "token", CANARY) == framed(two, "token")
    assert framed("pytest x.py", "token", CANARY) == "pytest x.py"
