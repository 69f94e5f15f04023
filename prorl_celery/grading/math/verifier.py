"""`math-verify`, as it is used here: one expression against one, with its own time-outs off, which are signals, and its
own removal of units off, which takes the t of `3t` for one. Only in a child process with limits.

To import this module costs a second or two and parses samples, for which the parser builds its tables, so that a child
need not: it is imported in the process that forks children, once (`WARM` of `check`).
"""

from __future__ import annotations

import logging
from fractions import Fraction
from importlib.resources import files
from typing import Any

from latex2sympy2_extended.math_normalization import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Rational, nan, zoo

from prorl_celery.grading.math.numbers import Number, close_decimal, plain_number

# It warns of every call that has no time-out.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_LATEX = LatexExtractionConfig(
    boxed_match_priority=-1,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    ),
)
DIGITS = 60
"""To which a constant is worked out beside a decimal."""


def parsed(text: str) -> Any | None:
    """The expression that a text in one spelling is; None where it cannot be read."""
    if "$" in text:
        return None
    found = parse(
        f"${text}$", [_LATEX], fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None
    )
    if found:
        return found[0]
    number = plain_number(text)
    return None if number is None else Rational(number.value.numerator, number.value.denominator)


def equivalent(key: Any, got: Any, key_number: Number | None, got_number: Number | None) -> bool:
    """Whether two expressions are equal. Beside a decimal (the `*_number`s), a constant is worked out, and is equal as
    `numbers` says; other decimals in expressions are compared to six places.
    """
    if (key_number is None) != (got_number is None):
        constant, decimal = (got, key_number) if got_number is None else (key, got_number)
        value = _constant(constant)
        if value is not None and decimal is not None and not decimal.percent:
            return value == decimal.value or (not _rational(constant) and close_decimal(value, decimal))
    return bool(
        verify(
            key,
            got,
            float_rounding=6,
            numeric_precision=15,
            strict=True,
            allow_set_relation_comp=True,
            timeout_seconds=None,
        )
    )


def has_value(expression: Any) -> bool:
    """Whether an expression is anything at all, and not 1/0; a constant is worked out, which may take for ever."""
    return not (getattr(expression, "is_number", False) and expression.doit() in (zoo, nan))


def _constant(expression: Any) -> Fraction | None:
    """The value of a real constant, exactly where it is rational, else to `DIGITS`."""
    if not isinstance(expression, Basic) or not getattr(expression, "is_number", False):
        return None
    value: Any = expression.doit()
    if not value.is_Rational:
        value = value.evalf(DIGITS)
    if not value.is_comparable or not value.is_finite:
        return None
    exact = Rational(value)
    return Fraction(int(exact.p), int(exact.q))


def _rational(expression: Any) -> bool:
    return bool(expression.doit().is_rational)


_SAMPLES = files("prorl_celery.grading.math").joinpath("samples.txt").read_text(encoding="utf-8").splitlines()
"""Shapes of answers as they are found in mathematical data."""
_PAIRS = (("(x+1)^2", "x^2+2x+1"), (r"\sqrt{8}", r"2\sqrt{2}"), (r"[0,\infty)", r"x \ge 0"), (r"2\pi", "6.28319"))

for _text in _SAMPLES:
    parsed(_text)
for _key, _got in _PAIRS:
    equivalent(parsed(_key), parsed(_got), plain_number(_key), plain_number(_got))
