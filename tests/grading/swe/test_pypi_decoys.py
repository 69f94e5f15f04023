"""Decoy forms of test files: what is changed in them, and what is left alone."""

from __future__ import annotations

import ast

import pytest

from prorl_celery.grading.swe.inside.decoys import decoy_form


def run(source: str, **names: object) -> dict[str, bool]:
    """Which of a file's test functions pass."""
    space: dict[str, object] = dict(names)
    exec(compile(source, "t.py", "exec"), space)
    passed = {}
    for name in [name for name in space if name.startswith("test")]:
        try:
            space[name]()  # type: ignore[operator]
        except AssertionError:
            passed[name] = False
        else:
            passed[name] = True
    return passed


@pytest.mark.parametrize(
    "value",
    [
        "'a'", "''", "b''", "'\u00e9 \\n'", "0", "-3", "1.5", "2j", "True", "False", "None", "[]", "{}", "()",
        "[1, 'a']", "(1, x)", "(x, [x, 2])", "{'a': x}", "{'a': 1}", "{1, 2}", "('a'\n    'b')",
        "float('inf') if x else 1", "...",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "form",
    [
        "assert f() == {}",
        "assert {} == f()",
        "T().assertEqual(f(), {})",
        "assert {} in [f()]",
        "T().assertIn({}, [f()])",
    ],
)
def test_what_is_right_fails_where_something_else_is_expected(value: str, form: str) -> None:
    import unittest

    x = 7
    line = form.format(value)
    source = f"# \u00e9\n\ndef test_\u00e9():\n    '\u00e9'; y = 1\n    {line}  # \u00e9\n"
    names = {"x": x, "f": lambda: eval("(" + value + ")", {"x": x}), "T": unittest.TestCase}
    assert run(source, **names) == {"test_\u00e9": True}
    made, failing = decoy_form(source, ["t.py::test_\u00e9[a::b]"])
    if "if x" in value:
        assert (made, failing) == (None, set())
        return
    assert failing == {"test_\u00e9"}
    assert made is not None
    assert run(made, **names) == {"test_\u00e9": False}


@pytest.mark.parametrize(
    "body",
    [
        "assert f() != 1", "assert f() in [1, 2]", "assert f()", "assert f() == g()", "assert 1 < f() < 3",
        "if g():\n        assert f() == 1",
        "if g(): return\n    assert f() == 1", "yield\n    assert f() == 1", "with raises(E):\n        assert f() == 1",
        "def inner():\n        assert f() == 1", "assert f() == 1 or g()", "self.assertEqual(1)", "pass",
    ],
)  # fmt: skip
def test_what_need_not_fail_is_no_decoy(body: str) -> None:
    source = f"def test_a():\n    {body}\n"
    ast.parse(source)
    assert decoy_form(source, ["t.py::test_a"]) == (None, set())


def test_only_tests_that_count_are_changed_and_nothing_else_of_the_file() -> None:
    source = "def test_a():\n    assert f() == 1\n\n\n# why\ndef test_b( ):\n    assert f()  ==  1\n"
    made, failing = decoy_form(source, ["t.py::T::test_a"])
    assert failing == {"test_a"}
    assert made is not None
    assert made.splitlines()[2:] == source.splitlines()[2:]
    assert made.splitlines()[1] != source.splitlines()[1]


def test_a_name_that_two_functions_have_is_a_decoy_only_if_both_are() -> None:
    source = "class A:\n    def test_a(self):\n        assert f() == 1\n\n\ndef test_a():\n    pass\n"
    assert decoy_form(source, ["t.py::test_a"]) == (None, set())


@pytest.mark.parametrize("source", ["def test_a(:", "", "\0", "def test_a():\r\n    assert f() == 1\r\n", "\ud800"])
def test_what_cannot_be_changed_is_left_alone(source: str) -> None:
    assert decoy_form(source, ["t.py::test_a"]) == (None, set())
