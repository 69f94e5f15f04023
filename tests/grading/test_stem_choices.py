"""Multiple choice: which choice a reply names, and keys that could mean two."""

from __future__ import annotations

from typing import Any

import pytest

from prorl_celery.errors import BadInstance
from prorl_celery.grading.stem.choices import Choices

ENERGIES = ["12 J", "15 J", "18 J", "24 J"]


def named(reply: str, choices: Any = ENERGIES, answer: Any = "C") -> tuple[bool, str | None]:
    grade = Choices.of({"choices": choices, "answer": answer}).grade(reply)
    return grade.right, grade.why


@pytest.mark.parametrize(
    "reply",
    [
        "C",
        "c",
        "(C)",
        "[C]",
        "C.",
        "**C**",
        "\\boxed{C}",
        "\\boxed{\\text{C}}",
        "$\\boxed{\\mathbf{(C)}}$",
        "Answer: (C)",
        "answer = C",
        "The answer is C.",
        "**Final Answer:** C",
        "The final answer is:\n\n(C)",
        "C) 18 J",
        "C: 18 J, because B is too little",
        "Option C",
        "It must be C",
        "18 J",
        "  18  j ",
        "$18\\,\\text{J}$",
        "Final answer: 18 J (C)",
        "A is too little, and D too much.\nAnswer: C",
        "First I thought \\boxed{A}. But it is \\boxed{C}",
    ],
)
def test_the_right_choice_is_found_in_all_its_forms(reply: str) -> None:
    assert named(reply) == (True, None)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("B", "it says B, not C"),
        ("\\boxed{B}\nAnswer: C", "it says B, not C"),
        ("15 J", "it says B, not C"),
        ("A or C", "more than one choice: A, C"),
        ("(A), (C)", "more than one choice: A, C"),
        ("Both (B) and (C)", "more than one choice: B, C"),
        ("C/D", "more than one choice: C, D"),
        ("It is 15 J, so option B or option C", "more than one choice"),
        ("C and 15 J are both right: C, B", "more than one choice"),
        ("E", "no answer"),
        ("none of them", "no answer"),
        ("I do not know. A question like this has no answer", "no answer"),
        ("", "no answer"),
        ("C\n" + "so it goes\n" * 3, "no answer"),
    ],
)
def test_another_choice_several_or_none_are_wrong(reply: str, why: str) -> None:
    right, said = named(reply)
    assert not right
    assert why in (said or ""), said


@pytest.mark.parametrize(
    ("choices", "answer", "reply"),
    [
        ({"1": "iron", "2": "gold"}, "2", "2"),
        ({"a": "iron", "b": "gold"}, "b", "B"),
        (["iron", "gold"], "gold", "B"),
        (["iron", "gold"], " GOLD ", "B"),
        (["iron", "gold"], 1, "B"),
        (["iron", "gold"], "(B)", "b"),
        (["1", "2", "3"], "2", "B"),
        ([1.5, 2], 1.5, "A"),
        ([30, 10, 20], 2, "C"),
        (["$\\frac{1}{2}$", "$2$"], "A", "\\boxed{\\frac{1}{2}}"),
        (["True", "False"], "False", "false"),
    ],
)
def test_a_key_is_a_label_a_text_or_a_place(choices: Any, answer: Any, reply: str) -> None:
    assert named(reply, choices, answer) == (True, None)


@pytest.mark.parametrize(
    ("instance", "field"),
    [
        ({"choices": ["x", "y"]}, "answer"),
        ({"choices": ["x", "y"], "answer": "Z"}, "answer"),
        ({"choices": ["x", "y"], "answer": 2}, "answer"),
        ({"choices": ["x", "y"], "answer": -1}, "answer"),
        ({"choices": ["x", "y"], "answer": True}, "answer"),
        ({"choices": ["x", "y"], "answer": None}, "answer"),
        ({"choices": ["x", "y"], "answer": ["A"]}, "answer"),
        ({"choices": [1, 2, 3], "answer": 2}, "answer"),  # the place, or the number
        ({"choices": ["B", "A"], "answer": "A"}, "choices"),
        ({"choices": ["x"], "answer": "A"}, "choices"),
        ({"choices": [], "answer": "A"}, "choices"),
        ({"choices": ["x", " X"], "answer": "A"}, "choices"),
        ({"choices": ["x", None], "answer": "A"}, "choices"),
        ({"choices": [True, False], "answer": "A"}, "choices"),
        ({"choices": "xy", "answer": "A"}, "choices"),
        ({"choices": 5, "answer": "A"}, "choices"),
        ({"choices": {"a": "x", "A": "y"}, "answer": "a"}, "choices"),
        ({"choices": {"long label": "x", "b": "y"}, "answer": "b"}, "choices"),
        ({"choices": [str(n) for n in range(27)], "answer": "A"}, "choices"),
    ],
)
def test_choices_or_keys_that_nobody_could_grade_by_are_refused(instance: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInstance) as caught:
        Choices.of(instance)
    assert caught.value.field == field


def test_choices_are_shown_as_they_are_given() -> None:
    shown = Choices.of({"choices": {"z": "last", "a": "first"}, "answer": "a"}).shown()
    assert shown == "(z) last\n(a) first"
