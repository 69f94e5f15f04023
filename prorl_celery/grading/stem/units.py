"""Units, by `pint`: their names and what one is in another. How they are joined is read here, not by pint, whose
parser takes any arithmetic: "10^10^10 m" would keep it busy for ever.

    unit     = product { ("/" | "per") product }
    product  = power { ["*" | "·" | blank] power }
    power    = (name | "(" unit ")") [["^"] whole number]

A product behind a slash is below it as a whole: J/kg·K and J/kg K are J/(kg·K), as textbooks mean it. `*` ends that, as
in a program: J/kg*K is (J/kg)·K. A temperature among other units is a difference: W/(m·°C) is W/(m·K).
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pint

LONGEST_CHARACTERS = 80
DEEPEST = 4
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-zµΩÅ°%_]+)|(?P<power>(?:\^\s?\(?|(?<=\S))[+-]?\d\)?(?!\d))|(?P<mark>[/*·()]))"
)
_DIFFERENCES = {"degree_Celsius": "delta_degree_Celsius", "degree_Fahrenheit": "delta_degree_Fahrenheit"}
_SPOKEN = [
    (re.compile(r"\bdeg(?:ree)?s? ?(?:celsius|C)\b", re.IGNORECASE), "degC"),
    (re.compile(r"\bdeg(?:ree)?s? ?(?:fahrenheit|F)\b", re.IGNORECASE), "degF"),
    (re.compile(r"\bsquare ([A-Za-z]{1,30})"), r"\1^2"),
    (re.compile(r"\bcubic ([A-Za-z]{1,30})"), r"\1^3"),
    (re.compile(r"\b([A-Za-z]{1,30}) squared\b"), r"\1^2"),
    (re.compile(r"\b([A-Za-z]{1,30}) cubed\b"), r"\1^3"),
    (re.compile(r"\bper ?cent\b"), "percent"),
    (re.compile(r"\bper\b"), "/"),
    (re.compile(r"^\s{0,4}1\s?/"), "dimensionless/"),
]

_lock = threading.Lock()
_registry: Any = None


class NoUnit(ValueError):
    """The text is no unit; the message says why."""


def registry() -> Any:
    """pint's registry, made when it is first asked for, which takes a second. Only to be used under the lock."""
    global _registry
    if _registry is None:
        import pint

        _registry = pint.UnitRegistry(cache_folder=None)
    return _registry


def read_unit(text: str) -> pint.Unit:
    """The unit that a text names (as `latex.plain` gives it). Raises `NoUnit`."""
    if len(text) > LONGEST_CHARACTERS:
        raise NoUnit(f"{text[:20]!r}... is too long for a unit")
    for pattern, written in _SPOKEN:
        text = pattern.sub(written, text)
    if text.startswith("(") and text.find(")") == len(text) - 1:
        text = text[1:-1]
    reader = _Reader(text)
    with _lock:
        unit: pint.Unit = reader.whole()
    return unit


def is_scale(unit: pint.Unit | None) -> bool:
    """Whether this is a temperature's scale, whose 0 is not nothing."""
    return str(unit) in _DIFFERENCES


def is_temperature(unit: pint.Unit) -> bool:
    """Whether temperatures are measured in it."""
    with _lock:
        return bool(unit.dimensionality == registry().kelvin.dimensionality)


def is_difference(unit: pint.Unit) -> bool:
    """Whether this is a difference of temperatures in degrees."""
    return str(unit) in _DIFFERENCES.values()


def as_difference(unit: pint.Unit) -> pint.Unit:
    """Degrees as a difference; another unit as it is."""
    if not is_scale(unit):
        return unit
    with _lock:
        difference: pint.Unit = registry().Unit(_DIFFERENCES[str(unit)])
    return difference


def convert(value: float, unit: pint.Unit, into: pint.Unit) -> float | None:
    """The value in another unit; None where that is of another dimension. Infinite where no float holds it."""
    import pint

    with _lock:
        try:
            return float(registry().Quantity(value, unit).to(into).magnitude)
        except (pint.DimensionalityError, pint.OffsetUnitCalculusError):
            return None
        except (OverflowError, ZeroDivisionError):
            return float("inf")


class _Reader:
    """Reads one text, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise NoUnit(f"{text!r} is no unit")
            self._tokens.append((match.lastgroup or "", match[0].strip()))
            at = match.end()
        self._at = 0

    def whole(self) -> Any:
        """The unit of the whole text."""
        if len(self._tokens) == 1 and self._peek() == "name":
            return registry().Unit(self._name(self._take()))
        unit = self._unit(0)
        if self._at < len(self._tokens):
            raise NoUnit(f"{self._text!r} is no unit")
        return unit

    def _unit(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise NoUnit(f"{self._text!r} is nested too deeply")
        unit = self._product(depth, below=False)
        while self._next("/"):
            unit = unit / self._product(depth, below=True)
            while self._next("*"):
                unit = unit * self._power(depth)
        return unit

    def _product(self, depth: int, *, below: bool) -> Any:
        unit = self._power(depth)
        while self._next("·") or (not below and self._next("*")) or self._peek() in {"name", "("}:
            unit = unit * self._power(depth)
        return unit

    def _power(self, depth: int) -> Any:
        if self._next("("):
            unit = self._unit(depth + 1)
            if not self._next(")"):
                raise NoUnit(f"{self._text!r} lacks a bracket")
        elif self._peek() == "name":
            name = self._name(self._take())
            unit = registry().Unit(_DIFFERENCES.get(name, name))
        else:
            raise NoUnit(f"{self._text!r} is no unit")
        if self._peek() == "power":
            unit = unit ** int(self._take().strip("^() "))
        return unit

    def _name(self, text: str) -> str:
        """pint's own name of a unit; also in another case, where it is a word ("Meters")."""
        import pint

        for name in (text, text.lower()) if len(text) > 3 or text in {"Kg", "Km", "KM", "KG", "Ohm"} else (text,):
            try:
                return str(registry().Unit(name))
            except (pint.UndefinedUnitError, ValueError, AssertionError):
                continue
        raise NoUnit(f"{text!r} is no unit that is known")

    def _peek(self) -> str:
        if self._at == len(self._tokens):
            return ""
        kind, text = self._tokens[self._at]
        return text if kind == "mark" else kind

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _next(self, mark: str) -> bool:
        if self._peek() != mark:
            return False
        self._at += 1
        return True
