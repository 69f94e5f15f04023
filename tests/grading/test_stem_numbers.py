"""Numbers with units: what is the same, what is close enough, and keys that nobody could grade by."""

from __future__ import annotations

import time
from typing import Any

import pytest

from prorl_celery.errors import BadInstance
from prorl_celery.grading.stem.grade import Grade
from prorl_celery.grading.stem.quantity import Key


def grade(reply: str, answer: Any, **fields: Any) -> Grade:
    return Key.of({"answer": answer, **fields}).grade(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "3.2 km",
        "3200 m",
        "3,200 m",
        "3 200 m",
        "320000 cm",
        "3.2",  # a bare number is in the unit that was asked for
        "\\boxed{3.2\\,\\text{km}}",
        "$3.2\\times10^{3}\\ \\mathrm{m}$",
        "3.2×10³ m",
        "3.2e3 m",
        "d = v t = 3.2 km",
        "Answer: 3200 meters",
        "The final answer is:\n3.2 km",
        "**Answer:** 3.2 km",
        "The distance is 3.2 km.",
        "First I thought 5 km.\n\nIt is about 3.2 km, all told",
        "3.2 ± 0.1 km",
        "(3.2 km)",
        "\\boxed{2 km}, no: \\boxed{3.2 km}",
    ],
)
def test_the_same_length_is_right_however_it_is_written(reply: str) -> None:
    assert grade(reply, "3.2 km").right, grade(reply, "3.2 km")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("3.3 km", "3.3 km is not 3.2 km"),
        ("-3.2 km", "-3.2 km is not"),
        ("3.2 m", "0.0032 km is not"),
        ("3.2 kg", "kg cannot be km"),
        ("3.2 apples", "'apples' is no unit that is known"),
        ("3.2 km or 3.3 km", "more than one number"),
        ("between 3 km and 4 km", "more than one number"),
        ("3.2 = 3.3 km", "3.3 km is not"),
        ("far", "no answer"),
        ("\n \n", "no answer"),
        ("1e999 km", "no answer"),
        ("nan", "no answer"),
        ("3,2 km", "no answer"),  # 3.2, or 3 and 2
        ("3.2.1 km", "no answer"),
        ("1/0 km", "no answer"),
        ("9e307 Gm", "inf km is not"),
    ],
)
def test_anything_else_is_wrong_and_says_why(reply: str, why: str) -> None:
    found = grade(reply, "3.2 km")
    assert not found.right
    assert why in (found.why or ""), found


@pytest.mark.parametrize(
    ("answer", "unit", "reply", "right"),
    [
        (25, "°C", "298.15 K", True),
        (25, "degC", "77 °F", True),
        (25, "°C", "25 degrees Celsius", True),
        (25, "°C", "25 K", False),
        (0, "°C", "32 °F", True),
        (10, "delta_degC", "10 K", True),  # a difference
        (10, "delta_degC", "10 °C", True),
        (10, "K", "10 °C", False),  # a point on its scale
        (0.6, "W/(m*°C)", "0.6 W/m·K", True),
        (4184, "J/(kg K)", "4.184 kJ/kg·K", True),
        (4184, "J/kg K", "4.184 J g^{-1} K^{-1}", True),
        (9.81, "m/s^2", "9.81 m s⁻²", True),
        (9.81, "m/s^2", "981 cm/s²", True),
        (9.81, "m/s^2", "9.81 meters per second squared", True),
        (9.81, "m/s^2", "9.81 m/s", False),
        (5, "N m", "5 N·m", True),
        (5, "mol/L", "5 M", True),
        (2.5, "kWh", "9 MJ", True),
        (5, "Ω", "5 Ohm", True),
        (1.6e-19, "C", "1.602 \\times 10^{-19} C", True),
        (180, "degree", "180°", True),
        (45, "%", "45 percent", True),
        (45, "%", "0.45", False),  # read as 0.45 %
        (45, None, "45%", True),
        (0.45, None, "45 %", True),
        (25, "°C", "25 C", True),  # no coulombs
        (5, "1/s", "5 s^-1", True),
        (5, "1/s", "300 1/min", True),
        (20, "m/s", "72 kilometers per hour", True),
        (42, None, "42 apples", True),  # no unit is asked
        (42, None, "There are 42 of 50", False),
    ],
)
def test_units_scales_and_percents(answer: float, unit: str | None, reply: str, right: bool) -> None:
    found = grade(reply, answer, **({} if unit is None else {"unit": unit}))
    assert found.right == right, found


@pytest.mark.parametrize(
    ("answer", "tolerance", "reply", "right"),
    [
        ("3.14", None, "3.1415926", True),  # rounds to what is written
        ("3.14", None, "3.146", False),
        ("3.140", None, "3.1415926", False),
        ("6.02e23", None, "6.022×10^23", True),
        ("6.02e23", None, "6.03×10^23", False),
        (42, None, "42.4", False),  # a whole number is met exactly
        (42, None, "42.0", True),
        ("1/3", None, "0.3333", True),
        ("1/3", None, "0.34", False),
        ("1/3", None, "\\dfrac13", True),
        ("-1/3", None, "-\\frac{1}{3}", True),
        (42, 0.05, "44", True),
        (42, 0.05, "45", False),
        (1.0, 0.1, "1.1", True),  # the bounds themselves, whatever floats make of them
        (1.0, {"absolute": 0.1}, "0.9", True),
        ("3.14", None, "3.135", True),
        (0, 0.05, "0.001", False),
        (0, {"absolute": 0.1}, "0.05", True),
        (10, {"relative": 0.01, "absolute": 1}, "10.9", True),
        (10, {"relative": 0.2, "absolute": 1}, "11.9", True),
        (10, {"relative": 0.01, "absolute": 1}, "11.1", False),
        (10, 0, "10.0000001", False),
    ],
)
def test_how_close_is_close_enough(answer: Any, tolerance: Any, reply: str, right: bool) -> None:
    assert grade(reply, answer, tolerance=tolerance).right == right, grade(reply, answer, tolerance=tolerance)


def test_an_absolute_tolerance_is_in_the_keys_unit() -> None:
    assert grade("3250 m", "3.2 km", tolerance={"absolute": 0.1}).right
    assert not grade("3350 m", "3.2 km", tolerance={"absolute": 0.1}).right


def test_a_unit_that_is_required_may_not_be_left_out() -> None:
    assert grade("5", 5, unit="m").right
    assert grade("5", 5, unit="m", unit_required=True).why == "it has no unit"
    assert grade("5 m", 5, unit="m", unit_required=True).right


@pytest.mark.parametrize(
    ("instance", "field"),
    [
        ({}, "answer"),
        ({"answer": None}, "answer"),
        ({"answer": True}, "answer"),
        ({"answer": ""}, "answer"),
        ({"answer": "about right"}, "answer"),
        ({"answer": "x = 5"}, "answer"),
        ({"answer": "5 or 6"}, "answer"),
        ({"answer": "1e999"}, "answer"),
        ({"answer": float("nan")}, "answer"),
        ({"answer": float("inf")}, "answer"),
        ({"answer": "5 apples"}, "answer"),
        ({"answer": 10**500}, "answer"),
        ({"answer": 10**5000}, "answer"),
        ({"answer": "10^10^10 m"}, "answer"),
        ({"answer": [5]}, "answer"),
        ({"answer": 5, "unit": "apples"}, "unit"),
        ({"answer": 5, "unit": "m/"}, "unit"),
        ({"answer": 5, "unit": "(m"}, "unit"),
        ({"answer": 5, "unit": "m^99"}, "unit"),
        ({"answer": 5, "unit": 5}, "unit"),
        ({"answer": 5, "unit": "((((((m))))))"}, "unit"),
        ({"answer": 5, "unit": "m" * 100}, "unit"),
        ({"answer": "5 m", "unit": "m"}, "unit"),
        ({"answer": 5, "unit": "__import__('os')"}, "unit"),
        ({"answer": 5, "tolerance": -0.1}, "tolerance"),
        ({"answer": 5, "tolerance": 1.5}, "tolerance"),
        ({"answer": 5, "tolerance": True}, "tolerance"),
        ({"answer": 5, "tolerance": "5%"}, "tolerance"),
        ({"answer": 5, "tolerance": float("nan")}, "tolerance"),
        ({"answer": 5, "tolerance": {}}, "tolerance"),
        ({"answer": 5, "tolerance": {"rel": 0.1}}, "tolerance"),
        ({"answer": 5, "unit_required": True}, "unit_required"),
        ({"answer": 5, "unit": "m", "unit_required": 1}, "unit_required"),
    ],
)
def test_a_key_that_nobody_could_grade_by_is_refused(instance: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInstance) as caught:
        Key.of(instance)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "reply",
    [
        "9" * 1_000_000,
        "1,111" * 200_000,
        "1 " * 500_000,
        "((((" * 250_000 + "5",
        "\\boxed{" * 150_000,
        "\\boxed{" + "{" * 500_000,
        "answer is " * 100_000,
        "5 " + "m*" * 500_000,
        "5 " + "(" * 300,
        "5 m^9" + " m^9" * 100_000,
        "1e" * 500_000,
        "10^10^10^10^10 m",
        "\\frac{1}{" * 100_000,
        "= " * 500_000,
        "± 1" * 300_000,
        "\n" * 1_000_000,
        "5 square square square " * 50_000,
    ],
    ids=lambda reply: reply[:12],
)
def test_a_hostile_reply_is_graded_at_once(reply: str) -> None:
    key = Key.of({"answer": "3.2 km"})
    key.grade("3.2 km")  # pint is there
    began = time.process_time()
    assert not key.grade(reply).right
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "reply",
    [
        "The acceleration is 9.81 m/s².",
        "The acceleration of free fall is approximately 9.81 $\\mathrm{m/s^2}$ on Earth.",
        "It is 9.81 m s^-2.",
        "It is 9.81 m·s⁻² downwards",
        "Approximately 9.81 meters per second squared.",
        "about 9.81 meters per square second, says the book",
        "It falls with 9.81 m/s^2, and 9.81 m/s^2 it is.",
    ],
)
def test_a_unit_with_a_power_is_read_amid_prose_as_well(reply: str) -> None:
    assert grade(reply, "9.81 m/s^2").right, grade(reply, "9.81 m/s^2")


@pytest.mark.parametrize("reply", ["It is 2^10.", "x^2", "e^-2 or so", "it is s^(2)"])
def test_neither_side_of_a_power_is_a_number_by_itself(reply: str) -> None:
    assert "no answer" in (grade(reply, 2).why or "")
    assert "no answer" in (grade(reply, 10).why or "")
