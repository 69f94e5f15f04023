"""The real instances of `../shared/cases/swe`, prepared once, and patches to them that look right, or are."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prorl_celery.cli.datasets import sandbox_python
from prorl_celery.data.pypi.prepare import Preparation, prepare
from prorl_celery.data.pypi.rows import files_of, rows_of

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "swe"
IDS = sorted(path.stem for path in CASES.glob("*.json")) if CASES.is_dir() else []

BREAKS = {
    "attrs-1": "Attribute.__setstate__ = lambda self, state: None\n",
    "boltons-1": "IndexedSet.pop = lambda self, index=None: None\n",
    "cachetools-1": "Cache.maxsize = property(lambda self: 1)\n",
    "humanize-1": "_was = naturaldelta\n\n\ndef naturaldelta(*a, **k):\n"
    "    return _was(*a, **k).replace('second', 'tick')\n",
    "parse-1": "_was = parse\n\n\ndef parse(*a, **k):\n    return _was(*a, **k) or 0\n",
    "sqlparse-1": "StatementSplitter._change_splitlevel = lambda self, ttype, value: 0\n",
    "toolz-1": "_was = interpose\n\n\ndef interpose(el, seq):\n    return itertools.islice(_was(el, seq), 3)\n",
    "xmltodict-1": "_convert_value_to_string = str\n",
}
"""What breaks a test of PASS_TO_PASS when it stands behind the fixed file."""

MAKE_PASSED = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
FAKE = "import os\nprint('9 passed in 0.01s')\nos._exit(0)\n"
PATCH_REPORTS = """

import _pytest.reports

_original = vars(_pytest.reports.TestReport)["from_item_and_call"]


def _from(cls, item, call):
    call.excinfo = None
    return _original.__func__(cls, item, call)


_pytest.reports.TestReport.from_item_and_call = classmethod(_from)
"""
EXITS = "\n\nimport os\n\nprint('9 passed')\nos._exit(0)\n"


class Bug:
    """One prepared instance, and patches to it."""

    def __init__(self, instance: Mapping[str, Any], case: Mapping[str, Any], gold: str) -> None:
        self.instance = dict(instance)
        self.gold = gold
        self._workspace = Path(instance["workspace"])
        self._file = case["gold_files"][0]
        self._root = instance["source_root"]

    def patches(self) -> dict[str, str]:
        """By name; but for `gold`, none of them may be resolved."""
        return {
            "gold": self.gold,
            "nothing": self._patch({"NOTES.md": "I tried.\n"}),
            "breaks": self._patch({self._file: self._fixed() + "\n\n" + BREAKS[self.instance["instance_id"]]}),
            "planted": self._patch(self._planted()),
            "reports made good": self._behind(PATCH_REPORTS),
            "exits": self._behind(EXITS),
        }

    def _behind(self, code: str) -> str:
        return self._patch({self._file: (self._workspace / self._file).read_text() + code})

    def _planted(self) -> dict[str, str]:
        """Tests of its own, conftest files, settings, a pytest, plugins, modules of the standard library."""
        test_file = self.instance["test_file"]
        folders = {".", self._root, str(Path(test_file).parent)}
        names = {
            "conftest.py": MAKE_PASSED, "sitecustomize.py": FAKE, "usercustomize.py": FAKE, "pytest.py": FAKE,
            "_pytest/__init__.py": FAKE, "pluggy/__init__.py": FAKE, "json.py": FAKE, "unittest/__init__.py": FAKE,
            "encodings/__init__.py": FAKE, "evil.py": MAKE_PASSED, "evil.pth": "import evil\n",
            "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
            "evil-1.dist-info/METADATA": "Name: evil\n",
        }  # fmt: skip
        planted = {f"{folder}/{name}": text for folder in folders for name, text in names.items()}
        ini = "addopts = -p evil\n"
        planted |= {
            "pytest.ini": f"[pytest]\n{ini}",
            "tox.ini": f"[pytest]\n{ini}",
            "setup.cfg": f"[tool:pytest]\n{ini}",
        }
        ids = [*self.instance["FAIL_TO_PASS"], *self.instance["PASS_TO_PASS"]]
        planted[test_file] = "".join(f"def {test.rpartition('::')[2]}():\n    pass\n\n\n" for test in ids)
        return {str(Path(name)): text for name, text in planted.items()}

    def _fixed(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, self._file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((self._workspace / self._file).read_bytes())
            subprocess.run(["git", "apply", "-"], cwd=folder, input=self.gold.encode(), check=True, capture_output=True)
            return path.read_text()

    def _patch(self, files: Mapping[str, str]) -> str:
        return patch_of(self._workspace, files)


def patch_of(workspace: Path, files: Mapping[str, str]) -> str:
    """The patch that gives files of a workspace these contents."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            was = workspace / name
            for side, data in (("a", was.read_bytes() if was.is_file() else None), ("b", text.encode())):
                path = Path(folder, side, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                if data is not None:
                    path.write_bytes(data)
                    path.chmod(was.stat().st_mode & 0o777 if was.is_file() else 0o644)
        command = ["git", "diff", "--no-index", "--no-prefix", "--no-renames", "a", "b"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="session")
def bugs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bug]:
    """All of them, prepared from the configured package index."""
    if not IDS:
        pytest.skip(f"there are no instances in {CASES}")
    python = sandbox_python()
    assert python is not None
    folder = tmp_path_factory.mktemp("pypi")
    rows = [row for path in files_of([CASES]) for row in rows_of(path)]
    plan = Preparation(folder=folder / "set", python=python[1], interpreter=python[0], gold=folder / "gold")
    lines = prepare(rows, plan, told=lambda *_: None).read_text(encoding="utf-8").splitlines()
    instances = [json.loads(line) for line in lines]
    return {
        instance["instance_id"]: Bug(instance, row.fields, (folder / f"gold/{row.instance_id}.diff").read_text())
        for instance, row in zip(instances, rows, strict=True)
    }
