"""What the runs of `inside/guard.py` come to: a verdict on the patch, or an error where they say nothing of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.grading.swe.form import SweVerdict, Tally

Run = Mapping[str, Any]
GOOD = ("passed", "xfailed")
"""As SWE-bench counts: an expected failure is as it should be."""
INTERNAL, MISUSED = 3, 4
"""pytest's exit codes."""
STOPPED = {"time": "did not end in time", "output": "printed too much", "processes": "started too many processes"}
WHY_CHARACTERS = 1500


def judge(facts: Mapping[str, Any], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> SweVerdict:
    """The verdict. `facts` is the guard's report.

    Raises: `BadInstance` when the base does not behave as the instance says; `EvalError` when tests cannot be run.
    """
    real, base = facts["real"], facts.get("base")
    if base is not None:
        _check_base(base, fail_to_pass, pass_to_pass)
    why = _why_not(facts, fail_to_pass, pass_to_pass)
    return SweVerdict(
        resolved=why is None,
        why=why,
        timed_out=real["stopped"] == "time",
        dropped=facts["dropped"],
        fail_to_pass=_tally(real, fail_to_pass),
        pass_to_pass=_tally(real, pass_to_pass),
    )


def _check_base(base: Run, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> None:
    """Raises as `judge`."""
    if base["no_pytest"]:
        raise EvalError(f"the tests cannot be run: {base['no_pytest']}")
    if base["stopped"]:
        raise EvalError(f"the tests of the base {STOPPED[base['stopped']]}")
    if not base["ended"]:
        raise EvalError(f"the tests of the base ended with {base['status']}: {base['output'][-WHY_CHARACTERS:]}")
    outcomes = base["outcomes"]
    if base["code"] == INTERNAL:
        raise EvalError(f"pytest itself failed on the base: {base['output'][-WHY_CHARACTERS:]}")
    if base["code"] == MISUSED and not outcomes:
        raise BadInstance(f"pytest refuses the command: {base['output'][-WHY_CHARACTERS:]}", field="test_command")
    if passing := [test for test in fail_to_pass if outcomes.get(test) in GOOD]:
        raise BadInstance(f"{passing[0]} passes without a fix", field="FAIL_TO_PASS")
    if failing := [test for test in pass_to_pass if outcomes.get(test) not in GOOD]:
        said = _said(base, failing[0]) or outcomes.get(failing[0]) or "there is no such test"
        raise BadInstance(f"{failing[0]} does not pass on the base: {said}", field="PASS_TO_PASS")
    if not base["uncollected"] and (unknown := [test for test in fail_to_pass if test not in outcomes]):
        raise BadInstance(f"there is no test {unknown[0]}", field="FAIL_TO_PASS")


def _why_not(facts: Mapping[str, Any], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> str | None:
    real, base = facts["real"], facts.get("base")
    if real["forged"]:
        return "tampered: something other than the test runner wrote to its report"
    if real["stopped"]:
        return f"the tests {STOPPED[real['stopped']]}"
    if not real["ended"]:
        return f"the tests' process ended with {real['status']} before they did: {real['output'][-WHY_CHARACTERS:]}"
    for name, tests in (("FAIL_TO_PASS", fail_to_pass), ("PASS_TO_PASS", pass_to_pass)):
        if failing := [test for test in tests if real["outcomes"].get(test) not in GOOD]:
            return f"{len(failing)} of {len(tests)} {name} fail: {failing[0]}: {_said(real, failing[0])}"
    if replaced := [name for name in real["changed"] if base is None or name not in base["changed"]]:
        return f"tampered: {', '.join(replaced[:3])} was changed while the tests ran"
    told = _told_by_control(facts) or _told_by_decoy(facts)
    return told or _expected_to_fail(facts, fail_to_pass, pass_to_pass)


def _expected_to_fail(facts: Mapping[str, Any], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> str | None:
    """A library can say of any test that it is expected to fail. Only one that does so by nature may."""
    outcomes, base = facts["real"]["outcomes"], facts.get("base")
    by_nature = base["outcomes"] if base else {}
    for test in fail_to_pass:
        if outcomes[test] == "xfailed":
            return f"{test} is expected to fail, and does"
    for test in pass_to_pass:
        if outcomes[test] != by_nature.get(test, "passed"):
            return f"{test} ends otherwise than without the patch: {outcomes[test]}"
    return None


def _told_by_control(facts: Mapping[str, Any]) -> str | None:
    """What the control run tells, in which every test should have failed.

    Where the base's own is as odd, that is the tests' nature. Raises: `EvalError` when it did not come to its end.
    """
    control, base_control = facts["control"], facts.get("base_control")
    if control is None:
        return None
    by_nature = base_control["outcomes"] if base_control else {}
    if not control["ended"]:
        if base_control and not base_control["ended"]:
            return None
        raise EvalError(f"the control run ended with {control['status']}: {control['output'][-WHY_CHARACTERS:]}")
    if control["forged"]:
        return "tampered: something other than the test runner wrote to its report"
    for test in facts["controlled"]:
        outcome = control["outcomes"].get(test)
        if outcome in (None, "passed") and not (base_control and by_nature.get(test) == outcome):
            return f"tampered: {test} passes even where it is made to fail"
    for test in facts["controlled"]:
        kind = control["escaped"].get(test)
        if kind and facts["real"]["outcomes"].get(test) == "passed":
            return f"tampered: {test} passes, though it is ended by an exception of the test runner's: {kind}"
    if control["alien"] and not (base_control and base_control["alien"]):
        return f"tampered: what is compared is equal to everything: {control['alien'][0]}"
    return None


def _told_by_decoy(facts: Mapping[str, Any]) -> str | None:
    """What the decoy run tells, in which no test passes that compares an answer. One that did not end tells nothing."""
    decoy, base = facts.get("decoy"), facts.get("base_decoy")
    if decoy is None:
        return None
    by_nature = base["outcomes"] if base else {}
    for test in facts["decoyed"]:
        if decoy["outcomes"].get(test) == "passed" and by_nature.get(test) != "passed":
            return f"tampered: {test} passes as well where it expects something else"
    return None


def _tally(run: Run, tests: Sequence[str]) -> Tally:
    good = [test for test in tests if run["outcomes"].get(test) in GOOD]
    return Tally(passed=good, failed=[test for test in tests if test not in good])


def _said(run: Run, test: str) -> str:
    said = (
        run["messages"].get(test) or "\n".join(run["uncollected"][:1]) or run["outcomes"].get(test) or "it was not run"
    )
    return str(said)[-WHY_CHARACTERS:]
