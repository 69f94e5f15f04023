"""Patches that would rather look right than be right: none is resolved, and each is a verdict, not an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pypi_cheats import (
    ANSWERS,
    AT_IMPORT,
    AT_LARGE,
    HANGS,
    LIBRARY,
    NOT_SO,
    PLANTED,
    STOPS,
    WRITES_TESTS,
    library,
)
from pypi_grading import Graded, quick
from pypi_library import FAIL_TO_PASS, FILE, PASS_TO_PASS, TEST_SOURCE

FOUND_OUT = (
    "reports made good where the library is named",
    "changes undone in the end",
    "what equals everything",
    "reports made good",
    "the runner's own words",
    "a plugin by the collector",
    "tests without a body",
)
"""These would pass, were it not for what finds them out."""


def slow_but(number: int, names: Iterable[str]) -> list[Any]:
    """Names as parameters, all but the first ones for the full run."""
    return [pytest.param(name, marks=[pytest.mark.slow] if at >= number else []) for at, name in enumerate(names)]


def test_all_that_can_be_planted_beside_the_code_is_not_there(graded: Graded) -> None:
    planted = {path: text for files in PLANTED.values() for path, text in files.items()}
    verdict = graded.grade(planted)
    assert not verdict.resolved
    assert list(verdict.fail_to_pass.failed) == FAIL_TO_PASS
    assert list(verdict.pass_to_pass.passed) == PASS_TO_PASS  # and it is no hindrance either


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_by_itself_is_not_there(graded: Graded, name: str) -> None:
    verdict = graded.grade(PLANTED[name])
    assert not verdict.resolved
    assert list(verdict.pass_to_pass.passed) == PASS_TO_PASS


@pytest.mark.parametrize("name", slow_but(3, FOUND_OUT))
def test_what_makes_tests_pass_is_found_out(graded: Graded, name: str) -> None:
    verdict = graded.grade(AT_IMPORT[name])
    assert not verdict.resolved
    assert str(verdict.why).startswith("tampered")


@pytest.mark.parametrize("name", slow_but(1, ANSWERS))
def test_what_answers_as_it_is_asked_is_found_out(graded: Graded, name: str) -> None:
    verdict = graded.grade(ANSWERS[name])
    assert not verdict.resolved
    assert "passes as well where it expects something else" in str(verdict.why)


def test_a_library_does_not_say_that_a_test_is_expected_to_fail(graded: Graded) -> None:
    verdict = graded.grade({LIBRARY: NOT_SO})
    assert not verdict.resolved
    assert "is expected to fail, and does" in str(verdict.why)
    spoilt = NOT_SO.replace("return text.upper()", "import pytest\n    pytest.xfail('later')")
    assert not graded.grade({LIBRARY: spoilt}, FAIL_TO_PASS=FAIL_TO_PASS[:1]).resolved


@pytest.mark.slow
def test_no_test_is_ended_by_an_exception_that_is_no_failure(graded: Graded) -> None:
    source = TEST_SOURCE.replace('self.assertEqual(twice("ab"), "abab")', 'self.assertEqual(twice("ab"), "ab" + "ab")')
    test = f"{FILE}::OldStyle::test_empty_and_not"
    verdict = graded.grade({LIBRARY: STOPS}, test_source=source, FAIL_TO_PASS=[test])
    assert not verdict.resolved
    assert "ended by an exception of the test runner's: _ShouldStop" in str(verdict.why)


@pytest.mark.slow
def test_the_tests_are_not_rewritten_before_they_are_read(graded: Graded) -> None:
    source = TEST_SOURCE.replace('"abab"', '"ab" + word')  # nothing is written out
    command = "export PYTHONPATH=src; python -m pytest -q -p tinywords tests/test_hidden.py"
    verdict = graded.grade(
        library(WRITES_TESTS), test_source=source, test_command=command, FAIL_TO_PASS=[f"{FILE}::test_twice"]
    )
    assert not verdict.resolved
    assert "the test file was changed" in str(verdict.why)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(AT_IMPORT) - set(FOUND_OUT)))
def test_what_ends_or_forges_passes_nothing(graded: Graded, name: str) -> None:
    assert not graded.grade(AT_IMPORT[name]).resolved


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_LARGE)
def test_what_reaches_out_reaches_nothing(graded: Graded, name: str) -> None:
    verdict = graded.grade(AT_LARGE[name], limits=quick(test_seconds=20.0))
    assert not verdict.resolved
    if name == "other processes' memory":
        assert "reached []." in str(verdict.why)


@pytest.mark.slow
def test_hanging_in_one_of_two_runs_passes_nothing(graded: Graded) -> None:
    verdict = graded.grade(HANGS, limits=quick(test_seconds=3.0))
    assert not verdict.resolved


def test_a_process_that_ends_with_success_at_once_passes_nothing(graded: Graded) -> None:
    verdict = graded.grade(library("import os\nprint('9 passed')\nos._exit(0)"))
    assert not verdict.resolved
    assert list(verdict.pass_to_pass.passed) == []
    assert "ended with 0" in str(verdict.why)
