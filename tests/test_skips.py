"""With `CI=true` a skip is a failure, whoever ran the test: this process or a worker of pytest-xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = {
    "test_whole.py": "import pytest\npytest.skip('not here', allow_module_level=True)\n",
    "test_some.py": "import pytest\n\n\ndef test_skipped():\n    pytest.skip('not now')\n",
    "test_good.py": "def test_good():\n    pass\n",
}


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(
    ("file", "ci", "code", "said"),
    [
        ("test_whole.py", "true", 1, "1 x not here"),
        ("test_some.py", "true", 1, "1 x not now"),
        ("test_some.py", "", 0, "1 x not now"),
        ("test_good.py", "true", 0, "1 passed"),
    ],
)
def test_a_skip_is_counted_and_fails_where_all_must_run(
    tmp_path: Path, workers: str, file: str, ci: str, code: int, said: str
) -> None:
    for name in {file, "test_good.py"}:
        (tmp_path / name).write_text(TESTS[name])
    told = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "skips", "-p", "no:cacheprovider", "-n", workers],
        cwd=tmp_path,
        env=os.environ | {"CI": ci, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (told.returncode, said in told.stdout) == (code, True), told.stdout + told.stderr
