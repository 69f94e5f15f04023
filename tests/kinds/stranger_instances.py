"""Instances of the form of `prorl datasets prepare swe-pypi` that were made for these tests alone: other libraries, and
shapes that the others have not. Issues and tests are our own words.
"""

from __future__ import annotations

from typing import Any

DOTENV_TESTS = r"""import os
import subprocess
import sys
import textwrap
import pytest
import dotenv


def run(code, cwd, **more):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **more}, capture_output=True, text=True)


class TestFind:
    @pytest.mark.parametrize("name", ["a.zip/x.py", "b::c[d].py", "\u00e9 \u2603.py"])
    def test_code_from_nowhere(self, tmp_path, monkeypatch, name):
        (tmp_path / ".env").write_text("a=b")
        child = tmp_path / "child1"
        child.mkdir()
        (child / "code.py").write_text("def inner(f):\n    return f()\n")
        source = tmp_path / "caller.py"
        source.write_text("x")
        space = {"find": dotenv.find_dotenv}
        exec(compile("def go():\n    return find()\n", str(child / name), "exec"), space)
        exec(compile("def outer(f):\n    return f()\n", str(source), "exec"), space)
        assert space["outer"](space["go"]) == str(tmp_path / ".env")


def test_values(tmp_path):
    path = tmp_path / ".env"
    path.write_text("A=1\nB='x y'\n", encoding="utf-8")
    assert dict(dotenv.dotenv_values(path)) == {"A": "1", "B": "x y"}


def test_set_key(tmp_path):
    path = tmp_path / ".env"
    assert dotenv.set_key(path, "a", "b") == (True, "a", "b")
    assert path.read_text() == "a='b'\n"


def test_child_sees_library(tmp_path):
    ran = run("import dotenv; print(dotenv.__file__)", tmp_path)
    assert ran.stdout.strip().endswith("src/dotenv/__init__.py"), ran.stderr
"""

TOMLKIT_TESTS = r"""import unittest
import tomlkit


def test_add_after_table_without_newline():
    doc = tomlkit.parse("[a]\nb = 1")
    doc.add("x", 1)
    assert tomlkit.parse(tomlkit.dumps(doc)).unwrap() == {"a": {"b": 1}, "x": 1}


class Dumping(unittest.TestCase):
    def test_inline_table(self):
        t = tomlkit.inline_table()
        t.update({"b": 1, "a": 2})
        self.assertEqual(tomlkit.dumps(t), "{b = 1, a = 2}")

    def test_plain(self):
        self.assertEqual(tomlkit.dumps({"a": 1}), "a = 1\n")

    def test_error(self):
        with self.assertRaises(TypeError):
            tomlkit.dumps(object())


def test_roundtrip():
    text = "# c\n[t]\nk = 'v' # d\n"
    assert tomlkit.dumps(tomlkit.parse(text)) == text
"""

SLUGIFY_TESTS = r"""import asyncio
from slugify import slugify
from slugify.special import add_uppercase_char, CYRILLIC


def test_all_letters():
    made = add_uppercase_char([("\u0448", "sh"), ("\u0449", "sch"), ("\u044f", "ya")])
    assert ("\u0429", "Sch") in made
    assert ("\u042f", "Ya") in made


def test_cyrillic():
    assert len([c for c, _ in CYRILLIC if c.isupper()]) == 4


def test_plain():
    assert slugify("Hello, World") == "hello-world"


def test_unidecode():
    async def go():
        return slugify("\u5f71\u5e08\u55ce")
    assert asyncio.run(go()) == "ying-shi-ma"
"""

STRANGERS: tuple[dict[str, Any], ...] = (
    {
        "instance_id": "dotenv-1",
        "package": "python-dotenv",
        "import_name": "dotenv",
        "base_version": "1.0.0",
        "fixed_version": "1.0.1",
        "archive": "sdist",
        "base_archive_sha256": "a8df96034aae6d2d50a4ebe8216326c61c3eb64836776504fcca410e5937a3ba",
        "fixed_archive_sha256": "e324ee90a023d808f1959c46bcbc04446a10ced277783dc6ee09987c37ec10ca",
        "source_root": "src",
        "problem_statement": "find_dotenv fails for code imported from a zip file.",
        "test_file": "tests/test_prorl_dotenv.py",
        "test_command": "PYTHONPATH=$PWD/src python -m pytest -q tests/test_prorl_dotenv.py",
        "FAIL_TO_PASS": ["tests/test_prorl_dotenv.py::TestFind::test_code_from_nowhere[a.zip/x.py]"],
        "PASS_TO_PASS": [
            "tests/test_prorl_dotenv.py::TestFind::test_code_from_nowhere[b::c[d].py]",
            "tests/test_prorl_dotenv.py::TestFind::test_code_from_nowhere[\\xe9 \\u2603.py]",
            "tests/test_prorl_dotenv.py::test_values",
            "tests/test_prorl_dotenv.py::test_set_key",
            "tests/test_prorl_dotenv.py::test_child_sees_library",
        ],
        "gold_files": ["src/dotenv/main.py"],
        "extra_requirements": ["click"],
        "test_source": DOTENV_TESTS,
    },
    {
        "instance_id": "tomlkit-1",
        "package": "tomlkit",
        "import_name": "tomlkit",
        "base_version": "0.13.2",
        "fixed_version": "0.13.3",
        "archive": "sdist",
        "base_archive_sha256": "fff5fe59a87295b278abd31bec92c15d9bc4a06885ab12bcea52c71119392e79",
        "fixed_archive_sha256": "430cf247ee57df2b94ee3fbe588e71d362a941ebb545dec29b53961d61add2a1",
        "source_root": ".",
        "problem_statement": "dumps of an inline table renders it as a document.",
        "test_file": "tests/test_hidden_x.py",
        "test_command": "python -m pytest -q -rA tests/test_hidden_x.py",
        "FAIL_TO_PASS": ["tests/test_hidden_x.py::Dumping::test_inline_table"],
        "PASS_TO_PASS": [
            "tests/test_hidden_x.py::Dumping::test_plain",
            "tests/test_hidden_x.py::Dumping::test_error",
            "tests/test_hidden_x.py::test_roundtrip",
            "tests/test_hidden_x.py::test_add_after_table_without_newline",
        ],
        "gold_files": [
            "tomlkit/api.py",
            "tomlkit/container.py",
            "tomlkit/items.py",
            "tomlkit/parser.py",
            "tomlkit/__init__.py",
        ],
        "extra_requirements": [],
        "test_source": TOMLKIT_TESTS,
    },
    {
        "instance_id": "slugify-1",
        "package": "python-slugify",
        "import_name": "slugify",
        "base_version": "8.0.3",
        "fixed_version": "8.0.4",
        "archive": "sdist",
        "base_archive_sha256": "e04cba5f1c562502a1175c84a8bc23890c54cdaf23fccaaf0bf78511508cabed",
        "fixed_archive_sha256": "59202371d1d05b54a9e7720c5e038f928f45daaffe41dd10822f3907b937c856",
        "source_root": ".",
        "problem_statement": "add_uppercase_char stops after the first letter.",
        "test_file": "test_prorl_slugify.py",
        "test_command": "python -m pytest -q test_prorl_slugify.py",
        "FAIL_TO_PASS": ["test_prorl_slugify.py::test_all_letters"],
        "PASS_TO_PASS": ["test_prorl_slugify.py::test_plain", "test_prorl_slugify.py::test_unidecode"],
        "gold_files": ["slugify/special.py"],
        "extra_requirements": ["text-unidecode"],
        "test_source": SLUGIFY_TESTS,
    },
)
