"""A made-up library with a bug, its fix, and an index of both with what its tests need: no network."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

BUGGY = '''"""Words."""


class Words(list):
    def longest(self):
        return max(self, key=len)


def shout(text):
    return text.upper()


def twice(text):
    return text + text[1:]
'''
FIXED = BUGGY.replace("text + text[1:]", "text + text")
BACKEND = """
def get_requires_for_build_wheel(settings=None):
    return []


def get_requires_for_build_sdist(settings=None):
    return []


def prepare_metadata_for_build_wheel(folder, settings=None):
    import os

    name = "tinywords-%s.dist-info" % open("VERSION").read().strip()
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: tinywords\\nVersion: %s\\n" % open("VERSION").read().strip())
    return name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
OWN_TEST = "from tinywords import shout\n\n\ndef test_shout():\n    assert shout('a') == 'A'\n"
CONFTEST = "import pytest\n\n\n@pytest.fixture\ndef word():\n    return 'ab'\n"

TEST_SOURCE = '''"""Hidden."""

from __future__ import annotations

import json
import unittest

import pytest

from tinywords import Words, shout, twice


def test_twice(word):
    assert twice(word) == "abab"


class TestTwice:
    @pytest.mark.parametrize("text", ["a b", "x::y[z]", "\\u00e9"])
    def test_of_many(self, text):
        assert twice(text) == text + text


class OldStyle(unittest.TestCase):
    def test_empty_and_not(self):
        self.assertEqual(twice("ab"), "abab")


def test_shout():
    assert shout("a") == "A"
    assert json.loads("[1]") == [1]


@pytest.mark.parametrize("words", [["a", "bb"], ["ccc"]], ids=["two words", "one"])
def test_longest(words):
    assert Words(words).longest() == words[-1]


@pytest.mark.xfail(strict=True)
def test_what_nobody_promises():
    assert shout("\\u00df") == "\\u1e9e"
'''
FILE = "tests/test_hidden.py"
FAIL_TO_PASS = [
    f"{FILE}::test_twice",
    f"{FILE}::TestTwice::test_of_many[a b]",
    f"{FILE}::TestTwice::test_of_many[x::y[z]]",
    f"{FILE}::TestTwice::test_of_many[\\xe9]",
    f"{FILE}::OldStyle::test_empty_and_not",
]
PASS_TO_PASS = [
    f"{FILE}::test_shout",
    f"{FILE}::test_longest[two words]",
    f"{FILE}::test_longest[one]",
    f"{FILE}::test_what_nobody_promises",
]
COMMAND = "export PYTHONPATH=src; python -W ignore::DeprecationWarning -m pytest -q tests/test_hidden.py"
"""Of the form that hides least: settings, conftest files and plugins of the workspace count."""


def release(folder: Path, version: str, code: str) -> tuple[Path, str]:
    """A source release in `folder`, and its SHA-256."""
    files = {
        "VERSION": version, "pyproject.toml": PYPROJECT, "backend.py": BACKEND, "src/tinywords/__init__.py": code,
        "tests/conftest.py": CONFTEST, "tests/test_own.py": OWN_TEST, "PKG-INFO": "Name: tinywords\n",
    }  # fmt: skip
    path = folder / f"tinywords-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            item = tarfile.TarInfo(f"tinywords-{version}/{name}")
            item.size = len(text)
            tar.addfile(item, io.BytesIO(text.encode()))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def wheel_of_installed(name: str, folder: Path) -> None:
    """A wheel of a pure-Python package as it is installed here."""
    found = metadata.distribution(name)
    tags = [line.split(": ")[1] for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag")]
    path = folder / f"{name.replace('-', '_')}-{found.version}-{tags[-1]}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in found.files or []:
            if not str(file).startswith("..") and "__pycache__" not in file.parts:
                wheel.write(found.locate_file(file), str(file))


def make_index(folder: Path) -> dict[str, Any]:
    """Fill a folder with releases and wheels, for PIP_FIND_LINKS, and return the instance as a file has it."""
    _, base = release(folder, "1.0", BUGGY)
    _, fixed = release(folder, "1.1", FIXED)
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        wheel_of_installed(name, folder)
    return {
        "instance_id": "tinywords-1", "package": "tinywords", "import_name": "tinywords", "base_version": "1.0",
        "fixed_version": "1.1", "archive": "sdist", "base_archive_sha256": base, "fixed_archive_sha256": fixed,
        "source_root": "src", "problem_statement": "twice('ab') gives 'abb'.", "test_file": FILE,
        "test_source": TEST_SOURCE, "test_command": COMMAND, "FAIL_TO_PASS": FAIL_TO_PASS,
        "PASS_TO_PASS": PASS_TO_PASS, "gold_files": ["src/tinywords/__init__.py"], "extra_requirements": [],
    }  # fmt: skip


def patch_of(workspace: Path, files: Mapping[str, str]) -> str:
    """The patch that gives files of a workspace these contents."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            for side, data in (("a", (workspace / name).read_bytes() if (workspace / name).exists() else None),
                               ("b", text.encode())):  # fmt: skip
                path = Path(folder, side, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                if data is not None:
                    path.write_bytes(data)
        command = ["git", "diff", "--no-index", "--no-prefix", "--no-renames", "--binary", "a", "b"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def write_instance(folder: Path, instance: Mapping[str, Any]) -> Path:
    path = folder / f"{instance['instance_id']}.json"
    path.write_text(json.dumps(instance))
    return path
