"""`reasoning_gym/*`: what instances it takes, where it reads the answer, and that no reply is run as code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grading.math_children import InChild, forked

from prorl_celery.data.gym import instances
from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.grading import gym
from prorl_celery.grading.gym import tagged_answer, verdict
from prorl_celery.grading.gym_text import plain_eval, plain_parse_expr
from prorl_celery.handlers.reasoning_gym import ReasoningGymHandler

HANDLER = ReasoningGymHandler()


@pytest.fixture
def in_child() -> InChild:
    return forked


def one(task: str, seed: int = 3, **config: Any) -> dict[str, Any]:
    return next(instances(task, 1, seed, **config))


def reward(instance: dict[str, Any], answer: str, in_child: InChild) -> float:
    ctx: Any = SimpleNamespace(instance=instance, rollout={"answer": answer}, in_child=in_child)
    said = HANDLER.eval(ctx)
    assert said["resolved"] == (said["reward"] == 1.0)
    assert said["resolved"] or said["why"]
    return float(said["reward"])


@pytest.mark.parametrize(
    "task", ["chain_sum", "rearc", "n_queens", "countdown", "simple_integration", "bitwise_arithmetic"]
)
def test_the_packages_own_answer_scores_one_and_another_less(task: str, in_child: InChild) -> None:
    instance = one(task)
    HANDLER.validate(instance)
    assert reward(instance, instance["answer"], in_child) == 1.0
    assert reward(instance, "no such thing", in_child) < 0.1


def test_what_is_half_right_keeps_its_half_and_is_not_resolved(in_child: InChild) -> None:
    instance = one("game_of_life")
    other = instance["answer"].replace("0", "1", 1)
    assert 0.9 < reward(instance, other, in_child) < 1.0


def test_a_scorer_gets_the_config_that_its_problem_was_made_with(in_child: InChild) -> None:
    instance = one("puzzle24")
    assert max(instance["metadata"]["numbers"]) > 5
    assert reward(instance, instance["answer"], in_child) == 1.0
    with pytest.raises(BadInstance, match="its own answer scores"):
        reward(instance | {"config": {"max_value": 5}}, instance["answer"], in_child)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("puzzle24", "6*4*1*1"),
        ("game_of_life_halting", "whatever"),
        ("coin_flip", "0"),
        ("intermediate_integration", "echo"),
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "NaN + nani"),
        ("gsm_symbolic", "negative"),
    ],
)
def test_what_a_scorer_would_take_for_right_is_not(task: str, answer: str, in_child: InChild) -> None:
    instance = one(task)
    if answer == "echo":
        answer = f"Integral({instance['metadata']['integrand']}, x)"
    if answer == "negative":
        answer = f"-{instance['answer']}"
    assert reward(instance, answer, in_child) < 0.1


EVALS = (
    "string_insertion",
    "spiral_matrix",
    "binary_matrix",
    "n_queens",
    "countdown",
    "puzzle24",
    "simple_integration",
)


@pytest.mark.parametrize("task", [*EVALS, "intermediate_integration", "polynomial_multiplication"])
def test_a_reply_is_never_run(task: str, in_child: InChild, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    for code in (
        f"open({str(trace)!r}, 'w')",
        f"__import__('os').system('touch {trace}')",
        f"[open({str(trace)!r}, 'w')]",
    ):
        assert reward(one(task), code, in_child) < 0.1
        assert not trace.exists()


def test_an_instance_is_never_run_either(in_child: InChild, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    instance = one("simple_integration")
    instance["metadata"]["integrand"] = f"__import__('os').system('touch {trace}')"
    with pytest.raises(BadInstance, match="its own answer scores 0"):
        reward(instance, "x", in_child)
    assert not trace.exists()


@pytest.mark.parametrize("text", ["[1, 2]", "(0x1f + 3) << 2", "{'a': [1.5, None]}", "-3 // 2"])
def test_literals_and_arithmetic_are_read(text: str) -> None:
    assert plain_eval(text) == eval(text)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "f()",
        "[].__class__",
        "[x for x in []]",
        "lambda: 1",
        "f'{1}'",
        "[1][0]",
        "1 if 1 else 2",
        "(y := 1)",
        "x" * 200_000,
    ],
)
def test_nothing_else_is(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        plain_eval(text)
    if not text.startswith(("a", "x")):
        with pytest.raises((ValueError, SyntaxError)):
            plain_parse_expr(text)


@pytest.mark.parametrize("text", ["x**2/2 + C", "sin(3*x) - exp(-x)", "2*x*(y + 1)", "pi/2"])
def test_expressions_are_read(text: str) -> None:
    import sympy

    assert plain_parse_expr(text) == sympy.parse_expr(text)


@pytest.mark.parametrize(
    "text", ["__import__", "eval", "open('x')", "S('1')", "sympify('1')", "lambdify", "x.y", "sin('1')", "Symbol('x')"]
)
def test_expressions_name_nothing_that_runs(text: str) -> None:
    with pytest.raises(ValueError, match=r"no (name|call|expression|number)"):
        plain_parse_expr(text)


@pytest.mark.parametrize(
    "text",
    [
        "<answer>7</answer>",
        "a <answer> 7 </answer> b <answer>\n8\n</answer> c",
        "<answer>1 <answer>2</answer>",
        "<answer>1</answer> 2</answer>",
        "</answer><answer>1",
        "no tags",
        "<answer></answer>",
    ],
)
def test_the_answer_is_extracted_as_the_package_does(text: str) -> None:
    from reasoning_gym.utils import extract_answer

    assert tagged_answer(text) == extract_answer(text)


def test_many_open_tags_cost_no_time() -> None:
    assert tagged_answer("<answer>" * 200_000) is None


@pytest.mark.parametrize(
    ("finish_reason", "said", "answer"),
    [
        ("finish", "7", "7"),
        ("finish", "It is <answer>7</answer>.", "7"),
        ("stop", "<answer> 7 </answer>", "7"),
        ("stop", "7", None),
        ("max_turns", None, None),
    ],
)
def test_where_the_answer_is_read(finish_reason: str, said: str | None, answer: str | None) -> None:
    asked: list[Any] = []

    def run_agent(messages: Any) -> dict[str, Any]:
        asked.extend(messages)
        return {"finish_reason": finish_reason, "answer": said, "turns": 1}

    ctx: Any = SimpleNamespace(instance={"question": "What?"}, run_agent=run_agent)
    assert HANDLER.rollout(ctx) == {"answer": answer}
    assert asked[0]["content"].startswith("What?")
    assert "<answer>" in asked[0]["content"]


def broken(**changes: Any) -> dict[str, Any]:
    instance = one("chain_sum") | changes
    return {name: value for name, value in instance.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data_source": "reasoning_gym/no_such"}, "data_source"),
        ({"data_source": "reasoning_gym/composite"}, "data_source"),
        ({"data_source": "reasoning_gym/"}, "data_source"),
        ({"question": ...}, "question"),
        ({"question": " "}, "question"),
        ({"answer": ...}, "answer"),
        ({"answer": 7}, "answer"),
        ({"metadata": ...}, "metadata"),
        ({"metadata": {"source_dataset": "lcm"}}, "metadata.source_dataset"),
        ({"config": []}, "config"),
    ],
)
def test_a_bad_instance_is_refused_before_it_is_run(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInstance) as refused:
        HANDLER.validate(broken(**changes))
    assert refused.value.field == field


@pytest.mark.parametrize("changes", [{"answer": "x" * 9}, {"config": {"no_such": 1}}])
def test_an_instance_that_cannot_be_scored_is_nobodys_zero(changes: dict[str, Any], in_child: InChild) -> None:
    instance = one("rearc") | changes if "answer" in changes else one("chain_sum") | changes
    with pytest.raises(BadInstance, match="cannot score this instance"):
        reward(instance, "7", in_child)


def test_no_answer_and_one_without_end_are_wrong_without_a_child() -> None:
    for answer in (None, " ", "x" * (gym.LONGEST_ANSWER + 1)):
        said = verdict("chain_sum", {}, answer, None)  # type: ignore[arg-type]
        assert (said["reward"], said["resolved"]) == (0.0, False)


def test_a_scorer_that_was_killed_is_nobodys_zero() -> None:
    def lost(*_: Any, timeout: float) -> Any:
        return {"reward": 0.0, "why": None, "bad": None, "lost": True}

    with pytest.raises(EvalError, match="killed"):
        verdict("chain_sum", one("chain_sum"), "7", lost)
