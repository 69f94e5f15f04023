"""A test that hangs fails where it hangs, and the others run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HANGS = """
import threading

import pytest


@pytest.fixture
def held():
    yield
    print("torn down")


@pytest.fixture
def stuck():
    threading.Event().wait(60)


def test_hangs_here(held):
    threading.Event().wait(60)


def test_hangs_before(stuck):
    pass


def test_after():
    pass
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_hang_is_a_failure_that_names_its_place_and_the_rest_goes_on(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_hang.py").write_text(HANGS)
    options = ("-p", "deadlines", "-p", "no:cacheprovider", "-n", workers, "-o", "deadline=0.5")
    told = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 1
    assert "1 failed, 1 passed, 1 error" in told.stdout, told.stdout
    assert "the call of test_hang.py::test_hangs_here has not ended within 0.5 s" in told.stdout
    assert "the setup of test_hang.py::test_hangs_before has not ended within 0.5 s" in told.stdout
    assert "torn down" in told.stdout
    assert "in test_hangs_here" in told.stdout + told.stderr  # of all threads
