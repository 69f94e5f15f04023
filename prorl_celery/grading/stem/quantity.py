"""Numbers with tolerance and unit.

The key is `answer`, a number or a text such as "3.2 km" or "1.2e3", with the unit in it or in `unit`. A number in the
reply is right within `tolerance`: a number is relative to the key (0.05 is 5 %), `{"relative": r, "absolute": a}`
allows the larger of both, a in the key's unit. Without a tolerance the number must round to the key as that is written
(3.14 is met by 3.1382), be a whole key exactly, and a fraction to a thousandth.

Units are converted; one of another dimension is wrong. Where a unit is asked, a bare number is read in it, unless the
instance says `unit_required`. Where none is asked, only the number counts: a unit that stands behind it is not looked
at, but "45 %" is 45 as well as 0.45. Temperatures in degrees are points on their scale, unless the key's unit is a
difference (`delta_degC`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prorl_celery.errors import BadInstance
from prorl_celery.grading.stem.grade import NO_ANSWER, Grade, wrong
from prorl_celery.grading.stem.latex import plain
from prorl_celery.grading.stem.numbers import Number, numbers
from prorl_celery.grading.stem.said import places
from prorl_celery.grading.stem.units import (
    NoUnit,
    as_difference,
    convert,
    is_difference,
    is_scale,
    is_temperature,
    read_unit,
)

if TYPE_CHECKING:
    import pint

EXACTLY = 1e-9
"""What arithmetic alone may cost, relative."""
_DEVIATION = re.compile(r"\s?±\s?[\d.]{1,40}(?:\s?%)?")
_BEHIND_SIGN = re.compile(r"[=≈]")
_DEGREES = {"C": "degC", "F": "degF"}
"""Coulomb and farad, but where a temperature is asked."""
_AROUND = " .,;:!*_`\"'()[]"
_FACTOR = r"(?:(?:square|cubic)\s)?[^\s=,;]+(?:\s(?:(?:squared|cubed)\b|[A-Za-zµΩ]{1,12}\^\(?[+-]?\d)){0,6}"
_TIGHT = re.compile(rf"\s?{_FACTOR}(?:\s?(?:/|·|\*|\bper\b)\s?{_FACTOR}){{0,6}}")
"""A unit amid prose: what stands together, is joined by a sign, or has a power, which prose has not."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reply says: a number, and the text behind it that should be a unit."""

    number: Number
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """The right value, in `unit` (None: none is asked), and how far from it one may be, in that unit."""

    value: float
    unit: pint.Unit | None
    within: float
    unit_required: bool = False

    @classmethod
    def of(cls, instance: Mapping[str, Any]) -> Key:
        """Of `answer`, `unit`, `tolerance`, `unit_required`. Raises `BadInstance` with `field`."""
        number, behind = _written(instance.get("answer"))
        unit_text = instance.get("unit")
        if not isinstance(unit_text, str | None):
            raise BadInstance(f"'unit' must be str, not {type(unit_text).__name__}", field="unit")
        if behind and unit_text:
            raise BadInstance("the unit stands in 'answer' and in 'unit'", field="unit")
        field, text = ("answer", behind) if behind else ("unit", plain(unit_text or ""))
        try:
            unit = read_unit(text) if text else None
        except NoUnit as error:
            raise BadInstance(str(error), field=field) from error
        required = instance.get("unit_required") or False
        if not isinstance(required, bool) or (required and unit is None):
            raise BadInstance("'unit_required' must be true or false, and true only with a unit", field="unit_required")
        return cls(number.value, unit, _within(number, instance.get("tolerance")), required)

    def grade(self, reply: str) -> Grade:
        """Whether the reply's number is the key's."""
        for place in places(reply):
            answers = _answers(place)
            if len(answers) == 1:
                return self._judge(answers[0])
            if answers:
                return wrong("it gives more than one number", place)
        return NO_ANSWER

    def _judge(self, answer: Answer) -> Grade:
        value = answer.number.value
        if self.unit is None:
            percent = answer.unit.startswith(("%", "percent", "per cent"))
            return self._compared([value, value / 100] if percent else [value], answer)
        if not answer.unit:
            if self.unit_required:
                return wrong("it has no unit", answer.text)
            return self._compared([value], answer)
        try:
            unit = read_unit(_DEGREES.get(answer.unit, answer.unit) if is_temperature(self.unit) else answer.unit)
        except NoUnit as error:
            return wrong(str(error), answer.text)
        converted = convert(value, as_difference(unit) if is_difference(self.unit) else unit, self.unit)
        if converted is None:
            return wrong(f"{answer.unit} cannot be {self.unit:~P}", answer.text)
        return self._compared([converted], answer)

    def _compared(self, values: list[float], answer: Answer) -> Grade:
        allowed = self.within + EXACTLY * (abs(self.value) or float(is_scale(self.unit)))
        if any(math.isfinite(value) and abs(value - self.value) <= allowed for value in values):
            return Grade(True, None, answer.text)
        unit = "" if self.unit is None else f" {self.unit:~P}"
        return wrong(f"{values[0]:.6g}{unit} is not {self.value:.6g}{unit} within {self.within:.3g}", answer.text)


def _answers(place: str) -> list[Answer]:
    """The numbers that a place gives, one where it is read as one."""
    text = _DEVIATION.sub("", plain(place)).strip(" .,;:!*_`\"'")
    behind = _BEHIND_SIGN.split(text)[-1].strip()
    for whole in (text, behind):
        found = _whole(whole)
        if found is not None:
            return [found]
    for part in (behind, text):
        amid = [Answer(number, _tight(part[number.end :]), part) for number in numbers(part)]
        if amid:
            # The same number twice, "2 m, that is, 2 m", is one.
            return amid[:1] if len({(one.number.value, one.unit) for one in amid}) == 1 else amid
    return []


def _whole(text: str) -> Answer | None:
    """A text that is a number and what can be a unit, and nothing else."""
    first = next(numbers(text), None)
    if first is None or text[: first.start].strip(" (:"):
        return None
    unit = text[first.end :].strip(" .")
    if not unit or unit == ")":
        return Answer(first, "", text)
    try:
        read_unit(unit)
    except NoUnit:
        return None
    return Answer(first, unit, text)


def _tight(behind: str) -> str:
    """What stands where a unit would; prose as well, which is then no unit that is known."""
    match = _TIGHT.match(behind)
    return match[0].strip(_AROUND) if match is not None else ""


def _written(answer: Any) -> tuple[Number, str]:
    """The key's number, and its unit's text."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise BadInstance("'answer' must be a number or a text with one", field="answer")
    if isinstance(answer, int) and answer.bit_length() > 1024:
        raise BadInstance("'answer' is too large for a number", field="answer")
    text = plain(repr(answer) if isinstance(answer, float) else str(answer)) if len(str(answer)) < 400 else ""
    found = list(numbers(text))
    if not found or text[: found[0].start].strip():
        raise BadInstance(f"'answer' is no number: {str(answer)[:80]!r}", field="answer")
    return found[0], text[found[0].end :].strip()


def _within(number: Number, tolerance: Any) -> float:
    if tolerance is None:
        return number.half
    parts = tolerance if isinstance(tolerance, dict) else {"relative": tolerance}
    if not parts or not parts.keys() <= {"relative", "absolute"}:
        raise BadInstance("'tolerance' has 'relative', 'absolute' or both", field="tolerance")
    for value in parts.values():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise BadInstance("'tolerance' must be a number that is not negative", field="tolerance")
    if parts.get("relative", 0) >= 1:
        raise BadInstance("a relative 'tolerance' of 1 or more takes nearly any answer", field="tolerance")
    relative, absolute = float(parts.get("relative", 0.0)), float(parts.get("absolute", 0.0))
    return max(relative * abs(number.value), absolute)
