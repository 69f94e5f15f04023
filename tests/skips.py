"""Skips are counted, with their reasons, at the end; with `CI=true` a skip is a failure."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

_skipped: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _count(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _count(report)


def _count(report: Any) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped[reason.removeprefix("Skipped: ")] += 1


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if _skipped and exitstatus == 0 and os.environ.get("CI") == "true":
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _skipped:
        wrong = " (a failure: CI=true)" if os.environ.get("CI") == "true" else ""
        terminalreporter.section(f"{_skipped.total()} skipped{wrong}")
        for reason, count in _skipped.most_common():
            terminalreporter.line(f"{count} x {reason}")
