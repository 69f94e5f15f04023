"""Which outputs are the one expected, by each checker."""

from __future__ import annotations

from typing import Any

import pytest

from prorl_celery.grading.code.checkers import checker_of, same_value

VERDICTS = [
    ("tokens", b"1 2\n3", b"1\n2 3\n", True),
    ("tokens", b"1 2", b"1 2 3", False),
    ("tokens", b"1 2 \n", b"1 2", True),
    ("tokens", b"1 2 \n3\n", b"1 2", False),
    ("tokens", b" \n", b"", True),
    ("tokens", b"Yes", b"yes", False),
    ("tokens", b"a\0b", b"a b", False),
    ("tokens", b"\xff\xfe", b"x", False),
    ("exact", b"1 2 \n\n", b"1 2", True),
    ("exact", b"1  2", b"1 2", False),
    ("exact", b"\n1 2", b"1 2", False),
    ("float", b"0.3333333", b"0.333333333", True),
    ("float", b"0.333", b"0.333333333", False),
    ("float", b"1000000.5", b"1000000.0", True),
    ("float", b"1e0 word", b"1.0 word", True),
    ("float", b"1.0 word", b"1.0 other", False),
    ("float", b"nan", b"1", False),
    ("float", b"inf", b"1", False),
    ("float", b"1", b"inf", False),
    ("float", b"inf", b"inf", True),
    ("float", b"1_0", b"10", False),
    ("float", b"1 2", b"1", False),
    ("float", b"9" * 100_000, b"1", False),
    ("any_order_lines", b"2 3\n1\n", b"1\n2  3", True),
    ("any_order_lines", b"3 2\n1\n", b"1\n2 3", False),
    ("any_order_lines", b"1\n1\n2", b"1\n2\n2", False),
    ("any_order_tokens", b"3 2 1", b"1\n2 3", True),
    ("any_order_tokens", b"3 2 1 1", b"1\n2 3", False),
    ("case_insensitive", b"YES", b"yes\n", True),
    ("case_insensitive", b"YES NO", b"yes\nyes", False),
]


@pytest.mark.parametrize(("kind", "output", "expected", "right"), VERDICTS)
def test_an_output_is_right_or_not(kind: str, output: bytes, expected: bytes, right: bool) -> None:
    assert checker_of(kind)(output, expected) is right


@pytest.mark.parametrize(
    "kind", ["tokens", "exact", "float", "any_order_lines", "any_order_tokens", "case_insensitive"]
)
def test_nothing_is_not_something(kind: str) -> None:
    assert not checker_of(kind)(b"", b"1")
    assert not checker_of(kind)(b"1", b"")
    assert checker_of(kind)(b"", b"\n")


@pytest.mark.parametrize(
    ("kind", "value", "expected", "right"),
    [
        ("tokens", [1, {"a": None}], [1, {"a": None}], True),
        ("tokens", 0.1 + 0.2, 0.3, False),
        ("float", [0.1 + 0.2, "x"], [0.3, "x"], True),
        ("float", {"a": 1}, {"a": 1.0000001}, True),
        ("float", {"a": 1}, {"b": 1}, False),
        ("float", [1], [1, 2], False),
        ("float", 10**400, 1.0, False),
        ("any_order_lines", [[2], [1]], [[1], [2]], True),
        ("any_order_lines", [1, 1], [1, 2], False),
        ("tokens", "1", 1, False),
    ],
)
def test_a_value_is_right_or_not(kind: str, value: Any, expected: Any, right: bool) -> None:
    assert same_value(value, expected, kind) is right
