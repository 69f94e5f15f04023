"""What a patch to a real release comes to: the fix, none, a half one, and what cannot be run."""

from __future__ import annotations

import pytest
from pypi_cheats import BREAKS, HANGS, LIBRARY
from pypi_grading import Graded, quick
from pypi_library import BUGGY, FAIL_TO_PASS, FILE, FIXED, PASS_TO_PASS, TEST_SOURCE

from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.sandbox.control import ControlFiles


def test_the_fix_is_resolved(graded: Graded) -> None:
    verdict = graded.grade(graded.gold)
    assert (verdict.resolved, verdict.why, verdict.applied_by) == (True, None, "git")
    assert list(verdict.fail_to_pass.passed) == FAIL_TO_PASS
    assert list(verdict.pass_to_pass.passed) == PASS_TO_PASS
    assert {"apply", "tests"} <= set(verdict.seconds)


def test_what_changes_nothing_is_not(graded: Graded) -> None:
    verdict = graded.grade({"NOTES": "I tried.\n"})
    assert not verdict.resolved
    assert verdict.why is not None
    assert verdict.why.startswith("5 of 5 FAIL_TO_PASS fail")
    assert list(verdict.fail_to_pass.failed) == FAIL_TO_PASS
    assert list(verdict.pass_to_pass.passed) == PASS_TO_PASS


def test_a_fix_that_breaks_what_worked_is_not(graded: Graded) -> None:
    verdict = graded.grade(BREAKS)
    assert not verdict.resolved
    assert list(verdict.fail_to_pass.failed) == []
    assert PASS_TO_PASS[0] in verdict.pass_to_pass.failed


def test_a_patch_that_does_not_apply_is_told_so(graded: Graded) -> None:
    verdict = graded.grade(graded.gold.replace("text.upper", "never.there").replace("text + text", "nor + this"))
    assert not verdict.resolved
    assert str(verdict.why).startswith("the patch does not apply")
    assert verdict.applied_by is None
    assert list(verdict.fail_to_pass.failed) == FAIL_TO_PASS


def test_tests_that_hang_are_not_resolved_and_say_so(graded: Graded) -> None:
    verdict = graded.grade(HANGS, limits=quick(test_seconds=2.5))
    assert (verdict.resolved, verdict.timed_out) == (False, True)
    assert "did not end in time" in str(verdict.why)


def test_the_fix_with_changes_to_tests_and_settings_is_resolved_without_those(graded: Graded) -> None:
    verdict = graded.grade({LIBRARY: FIXED, FILE: "x", "tests/test_own.py": "x", "pyproject.toml": "[x]\n"})
    assert verdict.resolved
    assert set(verdict.dropped) == {FILE, "tests/test_own.py", "pyproject.toml"}


@pytest.mark.slow
def test_a_fix_in_a_new_module_is_resolved(graded: Graded) -> None:
    fixed = BUGGY.replace("def twice(text):\n    return text + text[1:]\n", "from tinywords.more import twice\n")
    assert graded.grade({LIBRARY: fixed, "src/tinywords/more.py": "def twice(t):\n    return 2 * t\n"}).resolved


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("FAIL_TO_PASS", {"FAIL_TO_PASS": [*FAIL_TO_PASS, f"{FILE}::test_shout"], "PASS_TO_PASS": PASS_TO_PASS[1:]}),
        ("PASS_TO_PASS", {"test_source": TEST_SOURCE.replace('"A"', '"B"')}),
        pytest.param("FAIL_TO_PASS", {"FAIL_TO_PASS": [f"{FILE}::test_never_written"]}, marks=pytest.mark.slow),
        pytest.param("PASS_TO_PASS", {"PASS_TO_PASS": [f"{FILE}::test_never_written"]}, marks=pytest.mark.slow),
    ],
)
def test_an_instance_whose_base_does_not_behave_is_bad(graded: Graded, field: str, changes: dict[str, object]) -> None:
    with pytest.raises(BadInstance) as caught:
        graded.grade(graded.gold, **changes)
    assert caught.value.field == field


def test_a_command_that_pytest_refuses_is_the_instance_s_fault(graded: Graded) -> None:
    with pytest.raises(BadInstance) as caught:
        graded.grade(graded.gold, test_command="python -m pytest --no-such-option tests/test_hidden.py")
    assert caught.value.field == "test_command"


@pytest.mark.slow
def test_tests_that_nobody_could_run_are_no_verdict(graded: Graded) -> None:
    with pytest.raises(EvalError):
        graded.grade(graded.gold, test_command="exit 9")


@pytest.mark.parametrize(
    "command",
    [
        "PYTHONPATH=src pytest -q tests/test_hidden.py",
        "cd tests && PYTHONPATH=../src python3 -B -m pytest -q --rootdir=.. test_hidden.py",
        "PYTHONPATH=src python -m pytest -q -c /dev/null --rootdir=. -p no:cacheprovider "
        + " ".join(f"'{test}'" for test in (*FAIL_TO_PASS, *PASS_TO_PASS) if "xe9" not in test),
    ],
    ids=["pytest by itself", "from a folder", "with node ids"],
)
@pytest.mark.slow
def test_commands_of_all_kinds_run(graded: Graded, command: str) -> None:
    tests = [test for test in FAIL_TO_PASS if "xe9" not in test]
    verdict = graded.grade(graded.gold, test_command=command, FAIL_TO_PASS=tests)
    assert (verdict.resolved, verdict.why) == (True, None)


@pytest.mark.slow
def test_a_report_that_somebody_changed_is_no_verdict(graded: Graded, monkeypatch: pytest.MonkeyPatch) -> None:
    read = ControlFiles.read

    def meddle(self: ControlFiles, path: str, *, limit_bytes: int = 1 << 20) -> bytes:
        return read(self, path, limit_bytes=limit_bytes).replace(b'"failed"', b'"passed"')

    monkeypatch.setattr(ControlFiles, "read", meddle)
    with pytest.raises(EvalError, match="has been changed"):
        graded.grade({"NOTES": "I tried.\n"})
