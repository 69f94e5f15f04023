"""Whether an output is the one expected: the checkers that need no program of their own.

    tokens            the same words, however they are spaced (the default)
    exact             the same text, blanks at the ends of lines and empty lines at the end aside
    float             the same words, numbers within `tolerance`, absolute or relative to the expected one
    any_order_lines   the same lines in any order, each as by `tokens`
    any_order_tokens  the same words in any order
    case_insensitive  the same words, capitals or not: YES is yes

Outputs are bytes that may hold anything. Time and memory are linear in their length, but for sorting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

DEFAULT_TOLERANCE = 1e-6
LONGEST_NUMBER = 400

Checker = Callable[[bytes, bytes], bool]


def checker_of(kind: str, tolerance: float = DEFAULT_TOLERANCE) -> Checker:
    """The checker of that name, of output and expected output. Raises `KeyError`."""
    if kind == "float":
        return lambda output, expected: _close(*_words(output, expected), tolerance)
    return _PLAIN[kind]


def same_value(output: Any, expected: Any, kind: str, tolerance: float = DEFAULT_TOLERANCE) -> bool:
    """Whether what a function returned is what was expected: both as JSON holds them."""
    if kind == "float":
        return _close_values(output, expected, tolerance)
    if kind in ("any_order_lines", "any_order_tokens") and isinstance(output, list) and isinstance(expected, list):
        return sorted(map(repr, output)) == sorted(map(repr, expected))
    return bool(output == expected)


def _words(output: bytes, expected: bytes) -> tuple[list[bytes], list[bytes]]:
    """The words of both. Of an output that has more, one is all the rest: it need not take more memory."""
    wanted = expected.split()
    return output.split(None, len(wanted)), wanted


def _same_words(output: bytes, expected: bytes) -> bool:
    words, wanted = _words(output, expected)
    return words == wanted


def _same_words_in_any_order(output: bytes, expected: bytes) -> bool:
    words, wanted = _words(output, expected)
    return sorted(words) == sorted(wanted)


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _words_of_lines(text: bytes) -> list[list[bytes]]:
    return sorted(words for line in text.split(b"\n") if (words := line.split()))


_PLAIN: dict[str, Checker] = {
    "tokens": _same_words,
    "exact": lambda output, expected: _lines(output) == _lines(expected),
    "any_order_lines": lambda output, expected: _words_of_lines(output) == _words_of_lines(expected),
    "any_order_tokens": _same_words_in_any_order,
    "case_insensitive": lambda output, expected: _same_words(output.lower(), expected.lower()),
}

KINDS = (*_PLAIN, "float")


def _close(words: list[bytes], expected: list[bytes], tolerance: float) -> bool:
    return len(words) == len(expected) and all(
        word == wanted or _close_numbers(_number(word), _number(wanted), tolerance)
        for word, wanted in zip(words, expected, strict=True)
    )


def _number(word: bytes) -> float:
    """The number that a word is, else NaN, which is close to nothing."""
    if len(word) > LONGEST_NUMBER or b"_" in word:
        return math.nan
    try:
        return float(word)
    except ValueError:
        return math.nan


def _close_numbers(number: float, wanted: float, tolerance: float) -> bool:
    return number == wanted or abs(number - wanted) <= tolerance * max(1.0, abs(wanted)) < math.inf


def _close_values(value: Any, wanted: Any, tolerance: float) -> bool:
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(
            _close_values(one, other, tolerance) for one, other in zip(value, wanted, strict=True)
        )
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(_close_values(value[k], wanted[k], tolerance) for k in value)
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        try:
            return _close_numbers(float(value), float(wanted), tolerance)
        except OverflowError:
            return value == wanted
    return bool(value == wanted)
