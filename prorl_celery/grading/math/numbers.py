r"""Plain numbers, exactly: `7`, `1,000`, `-3.5`, `.5`, `3/4`, `\frac{3}{4}`, `1\frac{1}{2}`, `0.\overline{3}`, `1e-05`,
`1.5 \times 10^3`, `5 million`, with a currency before it or a unit, a percent sign or a base behind it.

When two of them are equal (`equal`):
- exactly, as fractions: 0.5 is 1/2, and 0.333 is not 1/3;
- a decimal with a point and six significant digits or more is a number that has no end of its decimals when it is that
  number rounded or cut off: 0.333333 is 1/3, and 333333 is not 1000000/3;
- 50% is 50 and 0.5 where either is said without a percent sign; 50% is not 0.5%;
- units are left out, unless both name one and they differ (5 cm is not 5 m); so are currencies and bases.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from prorl_celery.grading.math.latex import without_thousands

MOST_DIGITS = 1000
ENOUGH_DIGITS = 6
"""Significant digits from which a decimal may stand for a number without an end."""

_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_POWER_OF_TEN = r"(?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*([-+]?\d{1,3})\s*\}|([-+]?\d{1,3})))"
_BODY = re.compile(
    rf"""
    (?P<mixed>\d+)\s*\\frac\s*\{{\s*(?P<mixed_over>\d+)\s*\}}\s*\{{\s*(?P<mixed_under>\d+)\s*\}}
    |(?P<plain_mixed>\d+)\s+(?P<plain_over>\d+)\s*/\s*(?P<plain_under>\d+)
    |\\frac\s*\{{\s*(?P<frac_over>[-+]?{_DECIMAL})\s*\}}\s*\{{\s*(?P<frac_under>[-+]?{_DECIMAL})\s*\}}
    |\\frac\s*(?P<short_over>\d)\s*(?P<short_under>\d)
    |\(?(?P<over>{_DECIMAL})\s*/\s*(?P<under>{_DECIMAL})\)?
    |(?P<before>\d*)\.(?P<still>\d*)(?:\\overline\s*\{{\s*(?P<again>\d+)\s*\}}|\\dot\s*\{{?(?P<dotted>\d)\}}?)
    |(?P<decimal>{_DECIMAL})(?:[eE](?P<exponent>[-+]?\d{{1,3}})(?!\d)|{_POWER_OF_TEN})?
    """,
    re.VERBOSE,
)
_CURRENCY = r"(?:\\?\$|€|£|¥|₹|USD|EUR|Rs\.?)"
_SIGN = re.compile(rf"\s*(?P<sign>[-+]?)\s*(?P<currency>{_CURRENCY})?\s*(?P<late>[-+]?)\s*")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SHORT_UNITS = (
    "mm", "cm", "dm", "km", "m", "in", "ft", "yd", "mi", "mg", "kg", "g", "lb", "lbs", "oz", "ml", "mL", "L", "l",
    "ms", "s", "min", "h", "hr", "hrs", "mph", "kph", "km/h", "m/s", "Hz", "kHz", "W", "kW", "J", "kJ", "N", "Pa",
    "V", "A", "K",
)  # fmt: skip
_UNIT = re.compile(r"[A-Za-z][A-Za-z]*(?:[ /-][A-Za-z]+){0,4}(?:\s*\^\s*\{?[-]?\d\}?)?(?:/[A-Za-z]+(?:\^\{?\d\}?)?)?")
_NO_UNIT = frozenset((
    "or", "and", "not", "nor", "but", "neither", "either", "pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp",
    "frac", "theta", "alpha", "beta", "infinity", "mod", "choose", "plus", "minus", "times", "divided", "over",
    "is", "are", "equals", "if", "then",
))  # fmt: skip
_BASE = re.compile(r"_\s*\{?\s*(\d+)\s*\}?")
_UNIT_BEHIND = re.compile(
    r"(?P<rest>.*[^\s\\+*/=<>^_-])\s*\\text\s*\{\s*(?P<unit>[A-Za-z][A-Za-z/ .]*?)\s*\}\s*(?P<power>\^\s*\{?\d\}?)?"
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written. `last_place`: the value of one in a decimal's last place, where it has a point and
    `ENOUGH_DIGITS`. `unit`: a unit or a base, where one is named.
    """

    value: Fraction
    last_place: Fraction | None = None
    percent: bool = False
    unit: str | None = None

    @property
    def without_end(self) -> bool:
        """Whether its decimals have no end."""
        rest = self.value.denominator
        for prime in (2, 5):
            while rest % prime == 0:
                rest //= prime
        return rest != 1


def plain_number(text: str, *, unit: str | None = None) -> Number | None:
    """The number that a text in one spelling (`latex.spelled`) is, all of it; None where it is anything else. `5m` is
    five times m, and five metres only where `unit` says so.
    """
    if len(text) > MOST_DIGITS:
        return None
    text = without_thousands(text)
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1]
    sign = _SIGN.match(text)
    if sign is None or (sign["sign"] and sign["late"]):
        return None
    body = _BODY.match(text, sign.end())
    if body is None:
        return None
    try:
        value, last_place = _value(body)
    except (ValueError, ZeroDivisionError):
        return None
    tail = _tail(text[body.end() :], unit)
    if tail is None:
        return None
    scale, percent, unit = tail
    if "-" in (sign["sign"], sign["late"]):
        value = -value
    return Number(value * 10**scale, None if last_place is None else last_place * 10**scale, percent, unit)


def split_unit(text: str) -> tuple[str, str | None]:
    r"""An expression and the unit behind it, where it has one in `\text{}`: `3\sqrt{2}\text{ cm}^2`."""
    found = _UNIT_BEHIND.fullmatch(text)
    if found is None or _NO_UNIT & set(found["unit"].lower().split()) or not found["rest"].strip(" ="):
        return text, None
    power = (found["power"] or "").replace("{", "").replace("}", "").replace(" ", "")
    return found["rest"].strip(), " ".join(found["unit"].split()) + power


def equal(key: Number, got: Number) -> bool:
    """Whether what a reply says is the key's number, as the rules at the top of this file say."""
    if different_units(key.unit, got.unit):
        return False
    if key.percent == got.percent:
        return _same(key, got, 1)
    return _same(key, got, 1) or _same(key, got, Fraction(1, 100) if got.percent else 100)


def close_decimal(value: Fraction, decimal: Number, factor: Fraction | int = 1) -> bool:
    """Whether a decimal of enough digits, times `factor`, is this value rounded or cut off at its last place."""
    if decimal.last_place is None:
        return False
    said, place = decimal.value * factor, decimal.last_place * factor
    off = abs(value) - abs(said)
    return value * said > 0 and -place / 2 <= off < place


def _same(key: Number, got: Number, factor: Fraction | int) -> bool:
    """Whether `got` times `factor` is the key."""
    value = got.value * factor
    if key.value == value:
        return True
    if key.without_end:
        return close_decimal(key.value, got, factor)
    return got.without_end and close_decimal(value, key)


def _value(body: re.Match[str]) -> tuple[Fraction, Fraction | None]:
    for whole, over, under in (
        (body["mixed"], body["mixed_over"], body["mixed_under"]),
        (body["plain_mixed"], body["plain_over"], body["plain_under"]),
        ("0", body["frac_over"], body["frac_under"]),
        ("0", body["short_over"], body["short_under"]),
        ("0", body["over"], body["under"]),
    ):
        if over is not None:
            return Fraction(whole) + Fraction(over) / Fraction(under), None
    if body["still"] is not None:
        again = body["again"] or body["dotted"]
        still = Fraction(f"{body['before'] or 0}.{body['still'] or 0}")
        return still + Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(body["still"])), None
    digits = body["decimal"].removesuffix(".")
    power = int(next((found for found in (body["exponent"], *body.groups()[-2:]) if found is not None), "0"))
    whole, _, decimals = digits.partition(".")
    enough = bool(decimals) and len((whole + decimals).lstrip("0")) >= ENOUGH_DIGITS
    return Fraction(digits) * Fraction(10) ** power, Fraction(10) ** (power - len(decimals)) if enough else None


def _tail(text: str, expected: str | None) -> tuple[int, bool, str | None] | None:
    """Powers of ten, whether per cent, and the unit that stand behind a number; None where it is something else."""
    apart, text = text[:1] == " ", text.strip()
    base = _BASE.fullmatch(text)
    if base is not None:
        return 0, False, f"base {base[1]}"
    words = _TEXT.sub(r" \1 ", text).strip()
    in_text = words != text
    scale = _SCALES.get(words.partition(" ")[0].lower(), 0)
    if scale:
        words = words.partition(" ")[2].strip()
    if not words:
        return scale, False, None
    if re.fullmatch(r"\\?%|[Pp]er ?cent|[Pp]ercentage( points?)?|pct\.?", words):
        return scale, True, None
    if re.fullmatch(r"\^\\circ\s*[CF]?|degrees?( (Celsius|Fahrenheit))?", words):
        return scale, False, "degree"
    if re.fullmatch(_CURRENCY, words):
        return scale, False, None
    unit = re.sub(r"\s*\^\s*", "^", words).replace("{", "").replace("}", "").replace("square ", "").strip()
    if _UNIT.fullmatch(unit) is None or _NO_UNIT & set(re.split(r"[ /-]", unit.lower())):
        return None
    short = re.sub(r"\^\d", "", unit)
    if not in_text and unit != expected and not (apart or (len(short) > 1 and short in _SHORT_UNITS)):
        return None
    if not in_text and unit != expected and short not in _SHORT_UNITS and len(short.partition(" ")[0]) < 3:
        return None
    return scale, False, unit


def different_units(one: str | None, other: str | None) -> bool:
    """Whether two units are known to be different: both of the short ones, or both bases."""
    if one is None or other is None:
        return False
    known = [re.sub(r"\^\d", "", unit) in _SHORT_UNITS or unit.startswith("base ") for unit in (one, other)]
    return all(known) and one != other
