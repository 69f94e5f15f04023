"""What a log of tests says of FAIL_TO_PASS and PASS_TO_PASS, by the package `swebench`. Runs in a child process.

The package's grading and log parsers are imported without its package `swebench.harness`, whose start brings in a
client for containers and 1,600 modules, reads a file `.env`, and takes over a second; they themselves take 30 ms.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

UNREADABLE = (LookupError, ValueError, AttributeError, TypeError, RecursionError)
"""What parsers raise of a log that is not as they expect."""


def report(argument: Any) -> Any:
    """Grade a log: `{"log", "parser", "eval_type", "exit_code", "fail_to_pass", "pass_to_pass"}`.

    Returns `{"fail_to_pass": passed, "pass_to_pass": passed, "expected": tests, "ran": bool, "why": text or null}`, the
    first being lists of test ids, `expected` those of FAIL_TO_PASS that failed as was expected. `ran` is false where
    the log tells of no test at all; `why` says what is wrong with the log itself, and then nothing of it counts.
    """
    _without_harness()
    from swebench.harness.grading import SUITE_RAN, EvalType, TestStatus, get_eval_tests_report
    from swebench.harness.log_parsers import PARSER_REGISTRY

    log, exit_code = argument["log"], argument["exit_code"]
    nothing: dict[str, Any] = {"fail_to_pass": [], "pass_to_pass": [], "expected": [], "ran": False, "why": None}
    try:
        statuses = PARSER_REGISTRY[argument["parser"]](log, SimpleNamespace(**argument))
    except UNREADABLE as error:
        return {**nothing, "ran": True, "why": f"the log cannot be read: {type(error).__name__}: {error}"}
    if not statuses and not SUITE_RAN.search(log):
        return nothing
    bad = {TestStatus.FAILED.value, TestStatus.ERROR.value}
    if exit_code not in (None, 0) and statuses and not bad & set(statuses.values()):
        return {
            **nothing,
            "ran": True,
            "why": f"no test failed by the log, but the run ended with exit code {exit_code}",
        }
    wanted = {"FAIL_TO_PASS": argument["fail_to_pass"], "PASS_TO_PASS": argument["pass_to_pass"]}
    counted = get_eval_tests_report(statuses, wanted, eval_type=EvalType(argument["eval_type"]))
    passed = {name.lower(): counted[name]["success"] for name in wanted}
    expected = [test for test in passed["fail_to_pass"] if statuses.get(test) == TestStatus.XFAIL.value]
    return {**nothing, **passed, "expected": expected, "ran": True}


def _without_harness() -> None:
    """Stand an empty package in the place of `swebench.harness`, for this process."""
    name = "swebench.harness"
    found = find_spec("swebench")
    if name not in sys.modules and found is not None:
        package = ModuleType(name)
        package.__path__ = [f"{place}/harness" for place in found.submodule_search_locations or ()]
        sys.modules[name] = package
