"""Which replies are right by which keys, through the children in which they are parsed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from grading.math_children import InChild, children, no_child
from grading.math_pairs import pairs

from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.grading.bounds import Ended
from prorl_celery.grading.math import check
from prorl_celery.grading.math.check import check_key, key_of, verdict
from prorl_celery.grading.math.replies import said_answer

BOMBS = (
    "10^{10^{10}}",
    "9^{9^{9^{9}}}",
    "100000000!",
    r"\binom{10^9}{5 \cdot 10^8}",
    r"\gcd(10^{10^{10}}, 5)",
)


@pytest.fixture(scope="module")
def in_child() -> Iterator[InChild]:
    with children() as made:
        yield made


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_each_pair_of_key_and_reply_is_right_or_wrong_as_it_says(in_child: InChild, every: int) -> None:
    table = pairs()[::every]
    assert len(table) > 400 / every
    with ThreadPoolExecutor(2) as pool:
        said = pool.map(lambda pair: verdict(pair.key, pair.reply, pair.problem, in_child), table)
        told = list(zip(table, said, strict=True))
    assert [(pair, said) for pair, said in told if said["resolved"] != pair.right] == []
    for pair, said in told:
        assert said["reward"] == float(pair.right)
        assert pair.right or said["why"]


@pytest.mark.parametrize(
    ("key", "reply", "reward"),
    [("7", "It is 7.", 1.0), (7, "7.5", 0.0), (0.5, "1/2", 1.0), ("yes", "Yes", 1.0), ("7", "", 0.0)],
)
def test_numbers_and_words_need_no_child(key: Any, reply: str, reward: float) -> None:
    assert verdict(key, reply, "", no_child)["reward"] == reward


@pytest.mark.parametrize(
    "reply",
    [
        "x" * 1_000_000,
        r"\boxed{" * 140_000,
        "$" * 1_000_000,
        "7 " * 500_000,
        r"\frac{" * 160_000,
        "#### " * 200_000,
        "answer is " * 100_000,
        r"\boxed{" + "(" * 500 + "7" + ")" * 500 + "}",
        r"\boxed{" + "x^{" * 500 + "7" + "}" * 500 + "}",
        r"\boxed{" + "9" * 9_000 + "}",
        "\\" * 100_000,
        r"\boxed{\text{" * 1000,
    ],
    ids=lambda reply: reply[:12],
)
def test_a_reply_without_end_is_wrong_at_once(reply: str) -> None:
    begun = time.process_time()
    assert verdict("7", reply, "What is 3 + 4?", no_child)["reward"] == 0.0
    assert time.process_time() - begun < 1.0


def test_the_end_of_a_long_reply_is_what_counts() -> None:
    assert verdict("7", "so " * 300_000 + r"\boxed{7}", "", no_child)["reward"] == 1.0
    assert verdict("7", r"\boxed{8} " + "so " * 2000 + "7", "", no_child)["reward"] == 0.0


def bombs_in_a_second(argument: dict[str, Any]) -> dict[str, Any]:
    check.CPU_SECONDS = 1
    return check.compare_parsed(argument)


def in_one_child(argument: dict[str, Any]) -> list[Any]:
    """The pairs that come out otherwise than they say, compared in one process."""
    import prorl_celery.grading.math.check as module

    def unbounded(work: Any, **_: Any) -> Ended:
        ended = Ended()
        work(ended.said.append)
        return ended

    def here(function: Any, told: Any, *, timeout: float) -> Any:
        return function(told)

    module.bounded = unbounded
    return [p for p in argument["pairs"] if verdict(p[1], p[2], p[3], here)["resolved"] != p[0]]


def test_all_pairs_are_right_or_wrong_as_they_say(in_child: InChild) -> None:
    assert in_child(in_one_child, {"pairs": pairs()}, timeout=300.0) == []


def test_a_reply_that_takes_too_long_is_wrong_and_says_so(in_child: InChild) -> None:
    def hurried(_: Any, argument: Any, *, timeout: float) -> Any:
        return in_child(bombs_in_a_second, argument, timeout=timeout)

    said = verdict("7", rf"\boxed{{{BOMBS[0]}}}", "", hurried)
    assert (said["reward"], said["resolved"]) == (0.0, False)
    assert "more than 1 s of processor time" in said["why"]


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_no_bomb_outlives_its_limit(in_child: InChild, bomb: str) -> None:
    said = verdict("7", rf"\boxed{{{bomb}}}", "", in_child)
    assert said["reward"] == 0.0
    assert "could not be read" in said["why"]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "   ",
        "$$",
        "???",
        "()",
        r"\frac{1}{",
        "1}",
        "x^{" * 50 + "1" + "}" * 50,
        "x" * 2001,
        "9" * 5000,
        "a\x00b",
        r"\boxed{}",
    ],
)
def test_a_key_that_says_nothing_is_refused_from_its_text_alone(key: str) -> None:
    with pytest.raises(BadInstance) as refused:
        key_of(key)
    assert refused.value.field == "answer"


@pytest.mark.parametrize(
    "key", [None, True, ["7"], {"a": 1}, float("nan"), float("inf"), 1 << 20_000], ids=lambda key: type(key).__name__
)
def test_a_key_that_is_neither_text_nor_a_number_is_refused(key: Any) -> None:
    with pytest.raises(BadInstance):
        key_of(key)


@pytest.mark.parametrize(
    "key", [r"\frac{}{}", r"\foo{bar}", r"1,2,\dots,n", "[1, 2", "x^2+", r"(1,\foo)", r"3\sqrt{}", r"\frac{1}{0}"]
)
def test_a_key_that_cannot_be_parsed_is_nobodys_zero(in_child: InChild, key: str) -> None:
    with pytest.raises(BadInstance, match="cannot be parsed"):
        check_key(key, in_child)
    for reply in (r"\boxed{5}", rf"\boxed{{{key}}}"):
        with pytest.raises(BadInstance, match="cannot be parsed"):
            verdict(key, reply, "", in_child)


def test_a_key_that_cannot_be_worked_out_is_nobodys_zero(in_child: InChild) -> None:
    def hurried(_: Any, argument: Any, *, timeout: float) -> Any:
        return in_child(bombs_in_a_second, argument, timeout=timeout)

    with pytest.raises(BadInstance, match="more than 1 s"):
        verdict(BOMBS[0], r"\boxed{5}", "", hurried)


def test_what_was_killed_from_outside_is_nobodys_zero() -> None:
    def lost(*_: Any, timeout: float) -> Any:
        return {"key_problem": None, "lost": True, "right": False, "why": "it broke what reads it (signal 9)"}

    with pytest.raises(EvalError, match="killed"):
        verdict("x^2", r"\boxed{x^3}", "", lost)


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (r"a \boxed{1} b \boxed{2}", "number", "2"),
        (r"\boxed{1}, \boxed{2}", "number", "1, 2"),
        ("a\n#### 1,000", "number", "1,000"),
        ("The answer is $x$. It is right.", "latex", "x"),
        ("so 5, 6 and 7", "number", "5, 6, 7"),
        ("nothing", "number", None),
        ("", "latex", None),
    ],
)
def test_where_an_answer_is_said(reply: str, kind: Any, said: str | None) -> None:
    assert said_answer(reply, kind) == said
