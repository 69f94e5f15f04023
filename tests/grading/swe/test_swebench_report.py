"""What a log says of an instance's tests: the package's parsers, and what makes a log worth nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from prorl_celery.grading.swe.bench_report import report
from prorl_celery.sandbox.waiting import NeverCancelled
from tasks.nursery import Nursery

pytestmark = pytest.mark.skipif(importlib.util.find_spec("swebench") is None, reason="the extra swe is not installed")
LOG = "PASSED a.py::x\nFAILED a.py::y - AssertionError\nSKIPPED [1] a.py:3: no\nXFAIL a.py::z\n= 1 failed, 1 passed =\n"


@pytest.fixture(scope="module")
def read() -> Iterator[Callable[..., Any]]:
    """Grade a log in a child process."""
    nursery = Nursery()

    def ask(log: str, **changes: Any) -> Any:
        argument = {
            "log": log,
            "parser": "parse_log_pytest",
            "eval_type": "pass_and_fail",
            "exit_code": 1,
            "fail_to_pass": ["a.py::x", "a.py::y", "a.py::z"],
            "pass_to_pass": ["a.py::w"],
        }
        return nursery.call(report, argument | changes, timeout=30, cancel=never)

    with NeverCancelled() as never:
        yield ask
    nursery.close()


def test_what_passed_is_told_by_list(read: Callable[..., Any]) -> None:
    said = read(LOG)
    assert said == {
        "fail_to_pass": ["a.py::x", "a.py::z"], "pass_to_pass": [], "expected": ["a.py::z"], "ran": True, "why": None,
    }  # fmt: skip


def test_each_repository_has_its_own_format(read: Callable[..., Any]) -> None:
    log = "test_a (x.T) ... ok\ntest_b (x.T) ... FAIL\n"
    said = read(log, parser="parse_log_django", fail_to_pass=["test_a (x.T)"], pass_to_pass=["test_b (x.T)"])
    assert (said["fail_to_pass"], said["pass_to_pass"]) == (["test_a (x.T)"], [])


@pytest.mark.parametrize("log", ["", "rubbish\n", "Traceback\n  File x\nModuleNotFoundError: pytest\n", "\0\x1b[31m\n"])
def test_a_log_without_a_test_tells_of_none(read: Callable[..., Any], log: str) -> None:
    assert read(log) == {"fail_to_pass": [], "pass_to_pass": [], "expected": [], "ran": False, "why": None}


def test_a_log_that_its_exit_code_contradicts_tells_of_none(read: Callable[..., Any]) -> None:
    said = read("PASSED a.py::x\nPASSED a.py::y\nPASSED a.py::z\nPASSED a.py::w\n")
    assert (said["fail_to_pass"], said["ran"]) == ([], True)
    assert said["why"] == "no test failed by the log, but the run ended with exit code 1"
    assert read("PASSED a.py::x\n", exit_code=0)["fail_to_pass"] == ["a.py::x"]


def test_where_only_failures_are_printed_a_suite_must_have_run(read: Callable[..., Any]) -> None:
    only = {"parser": "parse_log_chart_js", "eval_type": "fail_only", "exit_code": 0, "pass_to_pass": []}
    assert read("nothing\n", **only)["ran"] is False
    assert read("Executed 0 of 0\n", **only)["ran"] is False
    assert len(read("Executed 3 of 3 SUCCESS\n", **only)["fail_to_pass"]) == 3


def test_a_log_that_breaks_its_parser_is_no_fault_of_the_service(read: Callable[..., Any]) -> None:
    said = read("[object Object]\n{", parser="parse_log_rspec_transformed_json")
    assert said["fail_to_pass"] == []
    assert said["ran"] is False or said["why"].startswith("the log cannot be read: ")
