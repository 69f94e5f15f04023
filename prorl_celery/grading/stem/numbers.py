"""A number as models and data sets write it: 3200, 1,234.5, 1.2e3, 3.2 x 10^3, 10^-7, 1/3, -2.5.

"1,5" is none: it may be one and a half, or two numbers. Neither is what has a power other than one of ten, nor the
power: the 2 of m/s^2 is no number that was given, and 2^10 is not 2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_MANTISSA = "|".join(
    (
        r"\d{1,3}(?:,\d{3}){1,12}(?:\.\d{1,40})?",
        r"\d{1,3}(?:[ ]\d{3}){1,12}(?![\d.])",
        r"\d{1,40}(?:\.\d{0,40})?",
        r"\.\d{1,40}",
    )
)
_TEN_TO = r"10\s?\^\s?\(?\s?(?P<{0}>[+-]?\d{{1,3}})\s?\)?"
_NUMBER = re.compile(
    rf"""(?<![\w.,^])(?<!\^[-+( ])(?<!\^\([-+])(?P<sign>[+-]\s?)?
    (?: {_TEN_TO.format("power")}
      | \(?(?P<above>{_MANTISSA})\)?\s?/\s?\(?(?P<below>\d{{1,40}}(?:\.\d{{0,40}})?)\)?(?![\d.eE])
      | (?P<mantissa>{_MANTISSA})(?!\d|[.,]\d|\s?\^)
        (?: [eE](?P<exponent>[+-]?\d{{1,3}})(?!\w) | \s?[×x*·]\s?{_TEN_TO.format("times")} )?
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Number:
    """`value`, and how exactly it is written: `half` is half a unit of its last decimal, 0 for a whole number or a
    power, and a thousandth of the value for a fraction. `start`, `end`: where it stands.
    """

    value: float
    half: float
    start: int
    end: int


def numbers(text: str) -> Iterator[Number]:
    """The numbers in a text that `latex.plain` has made; not those that no float holds."""
    for match in _NUMBER.finditer(text):
        number = _read(match)
        if number is not None:
            yield number


def _read(match: re.Match[str]) -> Number | None:
    sign = -1.0 if (match["sign"] or "").startswith("-") else 1.0
    try:
        if match["power"] is not None:
            value, half = 10.0 ** int(match["power"]), 0.0
        elif match["above"] is not None:
            value = _float(match["above"]) / _float(match["below"])
            half = abs(value) / 1000
        else:
            power = int(match["exponent"] or match["times"] or 0)
            value = _float(match["mantissa"]) * 10.0**power
            _, point, decimals = match["mantissa"].partition(".")
            half = 0.5 * 10.0 ** (power - len(decimals)) if point else 0.0
    except (OverflowError, ZeroDivisionError):
        return None
    if not math.isfinite(value):
        return None
    return Number(sign * value, half, match.start(), match.end())


def _float(text: str) -> float:
    return float(text.replace(",", "").replace(" ", ""))
