"""Grading a patch: a made-up package with a bug, its fix, and hidden tests, as `prorl datasets prepare` lays them out.

The bare way runs the very same tests by the same pytest and Python on the host, over files that have the fix already:
no sandbox, no git, no control form beside the real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from prorl_celery.bench.kinds.cost import Meter, cost, expect, in_turns, names_of
from prorl_celery.bench.report import BenchFailed, Report, median
from prorl_celery.grading.swe.form import SweLimits
from prorl_celery.grading.swe.pypi import PypiForm
from prorl_celery.sandbox.base import Sandbox
from prorl_celery.settings import Settings

FIGURES = (*names_of("swe_evals"), "swe_eval_ms", "swe_bare_ms", "swe_eval_over_bare")
NEEDED = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""What the tests are run by: this environment's own."""
LIMITS = SweLimits(apply_seconds=60, test_seconds=120, total_seconds=400, output_bytes=8 << 20)
BARE_SECONDS = 120.0

MODULE = "src/tinysums/__init__.py"
BUGGY = '''"""Sums."""


def total(numbers):
    return sum(numbers[1:])


def mean(numbers):
    return sum(numbers) / len(numbers)
'''
FIXED = BUGGY.replace("numbers[1:]", "numbers")
PATCH = f"""diff --git a/{MODULE} b/{MODULE}
--- a/{MODULE}
+++ b/{MODULE}
@@ -5 +5 @@
-    return sum(numbers[1:])
+    return sum(numbers)
"""
FILE = "tests/test_hidden.py"
TESTS = """import pytest

from tinysums import mean, total


@pytest.mark.parametrize("many", range(1, 21))
def test_total(many):
    assert total([1] * many) == many


@pytest.mark.parametrize("many", range(1, 21))
def test_mean(many):
    assert mean([many] * many) == many
"""
COMMAND = f"PYTHONPATH=src python -m pytest -q {FILE}"

Start = Callable[[], Sandbox]


def lacks_pytest() -> str | None:
    """Why no tests can be run here; None when they can."""
    for name in NEEDED:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return f"{name} is not installed here"
    return None


def lay(folder: Path, python: Path) -> dict[str, Any]:
    """The instance, with its files in `folder`; beside them `bare`, which has the fix and the tests."""
    _tree(folder / "workspace", BUGGY)
    _tree(folder / "bare", FIXED)
    _file(folder / "bare" / FILE, TESTS)
    site = folder / "site"
    for name in NEEDED:
        found = metadata.distribution(name)
        for file in found.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(found.locate_file(file)), target)
    compileall = ["compileall", "-q", "--invalidation-mode", "unchecked-hash", str(site)]
    subprocess.run(
        [str(python), "-m", *compileall], capture_output=True, timeout=BARE_SECONDS, check=False
    )  # faster, no more
    (folder / "wheelhouse").mkdir()
    with tarfile.open(folder / "wheelhouse" / "site.tar.gz", "w:gz") as tar:
        tar.add(site, arcname=".")
    _file(folder / "programs" / "python", f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec {python} "$@"\n')
    (folder / "programs" / "python").chmod(0o755)
    return {
        "instance_id": "tinysums-1", "problem_statement": "total forgets the first number.", "test_file": FILE,
        "test_source": TESTS, "test_command": COMMAND, "source_root": "src",
        "workspace": str(folder / "workspace"), "wheelhouse": str(folder / "wheelhouse"),
        "FAIL_TO_PASS": [f"{FILE}::test_total[{many}]" for many in range(1, 21)],
        "PASS_TO_PASS": [f"{FILE}::test_mean[{many}]" for many in range(1, 21)],
    }  # fmt: skip


def evals(report: Report, start: Start, python: Path, folder: Path, seconds: float) -> None:
    """Evals one after another, each in a fresh sandbox; then in turns with the bare tests."""
    if (lack := lacks_pytest()) is not None:
        report.lack(FIGURES, lack)
        return
    instance = lay(folder, python)
    form = PypiForm(Settings(datasets=(str(folder),)))
    form.validate(instance)

    def once(start: Start) -> int:
        sandbox = start()
        try:
            verdict = form.grade(sandbox, instance, PATCH, limits=LIMITS, in_child=_none_needed)
        finally:
            sandbox.stop()
        expect(verdict.to_json()["reward"], 1.0, f"the fix ({verdict.why})")
        return 1

    meter = Meter()
    metered = meter.metered(start)
    cost(lambda _: once(metered), seconds, meter).into(report, "swe_evals")
    took = in_turns({"ours": lambda: once(start), "bare": lambda: _bare(folder)}, seconds)
    report.figures |= {
        "swe_eval_ms": median(took["ours"]),
        "swe_bare_ms": median(took["bare"]),
        "swe_eval_over_bare": median(took["ours"]) / median(took["bare"]),
    }


def _bare(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    environment["PATH"] = os.pathsep.join([str(folder / "programs"), environment.get("PATH", os.defpath)])
    done = subprocess.run(
        ["bash", "-c", COMMAND],
        cwd=folder / "bare",
        env=environment,
        capture_output=True,
        text=True,
        timeout=BARE_SECONDS,
        check=False,
    )
    if done.returncode != 0 or "40 passed" not in done.stdout:
        raise BenchFailed(f"the tests failed on the host: {done.stdout[-500:]}{done.stderr[-500:]}")


def _none_needed(function: Callable[[Any], Any], argument: Any, *, timeout: float) -> Any:
    raise BenchFailed(f"{function.__name__} was to be run in a child")


def _tree(folder: Path, module: str) -> None:
    _file(folder / MODULE, module)
    _file(
        folder / "tests" / "test_own.py", "from tinysums import mean\n\n\ndef test_mean():\n    assert mean([2]) == 2\n"
    )


def _file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
