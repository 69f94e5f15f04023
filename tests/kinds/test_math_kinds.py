"""Mathematics through a whole service: reasoning-gym's problems with right answers and wrong ones, every task of the
package, and LaTeX answers that were worked out in the kernel.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from grading.math_children import InChild, children

from prorl_celery.data.gym import RUNS_CODE, instances, task_names
from prorl_celery.grading.gym import UNSOLVED, verdict

TASKS = (
    "base_conversion", "basic_arithmetic", "calendar_arithmetic", "chain_sum", "complex_arithmetic", "count_primes",
    "countdown", "decimal_arithmetic", "fraction_simplification", "gcd", "gsm_symbolic", "knights_knaves", "lcm",
    "maze", "polynomial_multiplication", "prime_factorization", "shortest_path", "simple_equations", "simple_geometry",
    "word_sorting",
)  # fmt: skip
EACH = 10
SEED = 20

NO_ANSWER = {"boxnet", "rush_hour"}
"""Tasks of which the package gives no right answer at all."""
ELSEWHERE = {
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "propositional_logic": lambda metadata: metadata["example_answer"],
    "rubiks_cube": lambda metadata: metadata["example_correct_answer"],
}
"""Tasks whose right answer is in the metadata."""

SYMPY = "import numpy, scipy, sympy; x = sympy.Symbol('x'); print(sympy.latex({code}))"
LATEX = [
    ("Factor x^2 - 5x + 6.",
     r"(x-2)(x-3)", r"\boxed{(x-3)(x-2)}", r"\boxed{(x+3)(x-2)}", "sympy.factor(x**2 - 5*x + 6)"),
    ("Solve x^2 = 2 over the reals.",
     r"\pm\sqrt{2}", r"\boxed{\sqrt{2}, -\sqrt{2}}", r"\boxed{\sqrt{2}}", "sympy.solve(x**2 - 2)"),
    ("Where is x(x-1) negative?",
     "(0, 1)", r"\boxed{(0,1)}", r"\boxed{[0,1]}", "sympy.solve(x*(x-1) < 0)"),
    ("Integrate x over [0, 1].",
     r"\frac{1}{2}", r"\boxed{0.5}", r"\boxed{1}", "sympy.integrate(x, (x, 0, 1))"),
    ("The derivative of sin(2x)?",
     r"2\cos(2x)", r"\boxed{2\cos 2x}", r"\boxed{\cos 2x}", "sympy.diff(sympy.sin(2*x))"),
    ("How long is the diagonal of a square of 3 cm?",
     r"3\sqrt{2}\text{ cm}", r"\boxed{\sqrt{18}}", r"\boxed{3}", "sympy.sqrt(18)"),
    ("The smallest prime above 100?",
     "101", r"\boxed{101}", r"\boxed{103}", "sympy.nextprime(100)"),
    ("Is 91 a prime, yes or no?",
     r"\text{no}", "No", "Yes", "sympy.isprime(91)"),
]  # fmt: skip


def gym_problems() -> list[dict[str, Any]]:
    return [instance for task in TASKS for instance in instances(task, EACH, SEED)]


def wrong_answer(instance: dict[str, Any]) -> str:
    """Another text of the same letters and digits, made without a look at what the scorer makes of it."""
    answer: str = instance["answer"]
    letters = list(answer + "1")
    random.Random(instance["instance_id"]).shuffle(letters)
    return "".join(letters).strip() + "1"


def gym_rows() -> list[dict[str, Any]]:
    return [
        {
            "key": instance["instance_id"],
            "prompt": instance["question"],
            "turns": [{"text": f"I think so: <answer>{instance['answer']}</answer>"}],
            "wrong_turns": [{"text": f"I think so: <answer>{wrong_answer(instance)}</answer>"}],
        }
        for instance in gym_problems()
    ]


def test_two_hundred_problems_of_twenty_tasks_are_right_when_right_and_wrong_when_wrong(kind_service: Any) -> None:
    problems = gym_problems()
    assert len(problems) == 200
    assert len({problem["instance_id"] for problem in problems}) == 200
    with kind_service(gym_rows()) as kind:
        assert kind.unlike(kind.run(problems), reward=1.0) == []
        wrong = kind.run(problems, wrong=True)
    assert [result for result in wrong if result.error is not None or result.reward is None] == []
    assert [(r.instance_id, r.reward) for r in wrong if r.reward >= 1.0 or r.eval["resolved"]] == []
    some = [(r.instance_id, r.reward) for r in wrong if r.reward > 0.0]
    print(f"200 right: 1.0 each; 200 wrong: none resolved, {len(some)} with a part of the reward: {some}")


@pytest.fixture(scope="module")
def in_child() -> Iterator[InChild]:
    with children() as made:
        yield made


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # what reads the boards leaves a file open
@pytest.mark.parametrize("task", sorted(task_names() - set(RUNS_CODE) - NO_ANSWER))
def test_the_answer_of_every_task_scores_one_when_it_has_been_json(task: str, in_child: InChild) -> None:
    for instance in instances(task, 3, seed=7):
        answer = ELSEWHERE[task](instance["metadata"]) if task in ELSEWHERE else instance["answer"]
        if UNSOLVED not in answer:
            assert verdict(task, instance, answer, in_child)["reward"] == 1.0
        assert verdict(task, instance, "no such thing", in_child)["reward"] < 0.5


@pytest.mark.parametrize("task", sorted(NO_ANSWER))
def test_a_task_without_an_answer_scores_a_wrong_one(task: str, in_child: InChild) -> None:
    for instance in instances(task, 3, seed=7):
        assert instance["answer"] is None
        assert verdict(task, instance, "no such thing", in_child)["reward"] < 0.1


def test_answers_in_latex_are_worked_out_in_the_kernel_and_scored(kind_service: Any) -> None:
    problems = [
        {"data_source": "math", "instance_id": f"latex-{n}", "problem": problem, "answer": key}
        for n, (problem, key, *_) in enumerate(LATEX)
    ]

    def turns(code: str, answer: str) -> list[dict[str, Any]]:
        return [
            {"text": "I compute.", "calls": [{"name": "think", "arguments": {"thought": "How?"}}]},
            {"calls": [{"name": "ipython", "arguments": {"code": SYMPY.format(code=code)}}]},
            {"calls": [{"name": "finish", "arguments": {"answer": answer}}]},
        ]

    rows = [
        {"key": f"latex-{n}", "prompt": problem, "turns": turns(code, right), "wrong_turns": turns(code, wrong)}
        for n, (problem, _, right, wrong, code) in enumerate(LATEX)
    ]
    with kind_service(rows) as kind:
        right = kind.run(problems)
        assert kind.unlike(right, reward=1.0) == []
        for result in right:
            said = json.dumps([turn.model_dump(mode="json") for turn in result.turns])
            assert "Error" not in said, said
        assert kind.unlike(kind.run(problems, wrong=True), reward=0.0) == []
