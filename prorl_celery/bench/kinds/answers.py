"""Graders of answers: mathematics, `reasoning-gym`, science. No sandbox; where text is parsed, a child each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from prorl_celery.bench.kinds.cost import cost, expect, names_of
from prorl_celery.bench.report import Report
from prorl_celery.data.gym import EXTRA, instances
from prorl_celery.grading import gym
from prorl_celery.grading.math import check
from prorl_celery.grading.stem.choices import Choices
from prorl_celery.grading.stem.quantity import Key

InChild = Callable[..., Any]

MATH_FIGURES = names_of("math_numbers", "math_expressions")
GYM_FIGURES = names_of("reasoning_gym")
STEM_FIGURES = names_of("stem_choices", "stem_numbers")

THOUGHTS = "Let us see. We take the first and add the second to it, which comes to more than either of them.\n" * 8
"""What a model says before its answer: graders have to find the end."""

NUMBERS = (
    ("42", "\\boxed{42}", 1.0), ("42", "So it is \\boxed{41}.", 0.0), ("1000", "\\boxed{1,000}", 1.0),
    ("0.75", "\\boxed{\\frac{3}{4}}", 1.0), (7, "The answer is $\\boxed{7}$.", 1.0), ("-3", "\\boxed{3}", 0.0),
)  # fmt: skip
EXPRESSIONS = (
    ("x^2+2x+1", "\\boxed{(x+1)^2}", 1.0), ("2\\sqrt{2}", "\\boxed{\\sqrt{8}}", 1.0),
    ("\\{-2,2\\}", "\\boxed{\\{2,-2\\}}", 1.0), ("[-1,1)", "\\boxed{[-1,1]}", 0.0),
    ("\\frac{\\pi}{4}", "\\boxed{\\frac{\\pi}{3}}", 0.0), ("(1,2)", "\\boxed{(1,2)}", 1.0),
)  # fmt: skip
"""Answer keys, replies' ends, and what they are worth."""

GYM_TASKS = ("chain_sum", "countdown", "word_sorting", "simple_equations", "mini_sudoku", "leg_counting")
GYM_PROBLEMS = 5

CHOICES = {"choices": ["Mercury", "Venus", "Earth", "Mars"], "answer": "B"}
CHOSEN = (("Answer: B", 1.0), ("I think of the second: Venus.\nAnswer: (B) Venus", 1.0), ("Answer: D", 0.0))
NUMBER = {"answer": "9.81 m/s^2", "tolerance": 0.01}
GIVEN = (("Answer: 9.8 m/s^2", 1.0), ("Answer: 981 cm/s^2", 1.0), ("Answer: $9.81 \\times 10^{0}$ m/s^2", 1.0),
         ("Answer: 3.2 m/s^2", 0.0))  # fmt: skip


def math(report: Report, in_child: InChild, seconds: float) -> None:
    """Replies against keys that are numbers, and against those that have to be parsed."""
    for name, pairs in (("math_numbers", NUMBERS), ("math_expressions", EXPRESSIONS)):
        cost(partial(_check, pairs, in_child), seconds).into(report, name)


def _check(pairs: tuple[tuple[Any, str, float], ...], in_child: InChild, number: int) -> int:
    key, end, worth = pairs[number % len(pairs)]
    expect(check.verdict(key, THOUGHTS + end, "What is it?", in_child)["reward"], worth, f"{end} against {key}")
    return 1


def reasoning_gym(report: Report, in_child: InChild, seconds: float) -> None:
    """The tasks' own answers, scored by the package, in turns."""
    if importlib.util.find_spec("reasoning_gym") is None:
        report.lack(GYM_FIGURES, EXTRA)
        return
    problems = [(task, made) for task in GYM_TASKS for made in instances(task, GYM_PROBLEMS, seed=1)]

    def score(number: int) -> int:
        task, made = problems[number % len(problems)]
        expect(gym.verdict(task, made, made["answer"], in_child)["reward"], gym.SOLVED, f"the answer of {task}")
        return 1

    cost(score, seconds).into(report, "reasoning_gym")


def stem(report: Report, seconds: float) -> None:
    """Choices, and numbers with units. The instance is read anew each time, as in eval."""

    def choice(number: int) -> int:
        said, worth = CHOSEN[number % len(CHOSEN)]
        expect(Choices.of(CHOICES).grade(THOUGHTS + said).as_eval()["reward"], worth, said)
        return 1

    def quantity(number: int) -> int:
        said, worth = GIVEN[number % len(GIVEN)]
        expect(Key.of(NUMBER).grade(THOUGHTS + said).as_eval()["reward"], worth, said)
        return 1

    cost(choice, seconds).into(report, "stem_choices")
    cost(quantity, seconds).into(report, "stem_numbers")
