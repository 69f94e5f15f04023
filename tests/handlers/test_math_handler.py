"""`math`: its tools and its sandbox, what it asks the model, and that a bad key ends a job before it is sampled."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from grading.math_children import InChild, children, no_child

from prorl_celery.errors import BadInstance
from prorl_celery.handlers.math import MathHandler
from prorl_celery.jobs.models import JobRequest

HANDLER = MathHandler()
INSTANCE = {"data_source": "math", "problem": "What is 3 + 4?", "answer": "7"}


@pytest.fixture(scope="module")
def in_child() -> Iterator[InChild]:
    with children() as made:
        yield made


def job(tools: list[str] | None) -> JobRequest:
    return JobRequest.model_validate({"job_id": "j", "instance": INSTANCE, "agent": {"tools": tools}})


def asked(tools: list[str] | None) -> str:
    said: list[Any] = []

    def run_agent(messages: Any) -> dict[str, Any]:
        said.extend(messages)
        return {"finish_reason": "stop", "answer": "7", "turns": 1}

    ctx: Any = SimpleNamespace(instance=INSTANCE, job=job(tools), run_agent=run_agent)
    assert HANDLER.rollout(ctx) == {"answer": "7"}
    (message,) = said
    return str(message["content"])


@pytest.mark.parametrize(
    ("tools", "sandbox", "kernel"),
    [
        (None, True, True),
        ([], False, False),
        (["think", "finish"], False, False),
        (["bash"], True, False),
        (["ipython"], True, True),
    ],
)
def test_a_job_has_the_kernel_unless_it_says_otherwise(tools: list[str] | None, sandbox: bool, kernel: bool) -> None:
    assert HANDLER.default_tools == ("ipython", "think", "finish")
    assert HANDLER.needs_sandbox(job(tools)) == sandbox
    assert (HANDLER.needs_sandbox(job(tools)) and HANDLER.needs_kernel(job(tools))) == kernel


def test_the_model_is_told_what_it_has() -> None:
    assert asked([]) == INSTANCE["problem"]
    assert "Python" in asked(None)
    assert "finish" in asked(None)
    assert "Python" not in asked(["think"])
    for tools in (None, ["think"]):
        assert asked(tools).startswith(str(INSTANCE["problem"]))
        assert r"\boxed{}" in asked(tools)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"problem": 7}, "problem"),
        ({"problem": " "}, "problem"),
        ({"problem": "x" * 200_001}, "problem"),
        ({"answer": None}, "answer"),
        ({"answer": ["7"]}, "answer"),
        ({"answer": r"\frac{1}{"}, "answer"),
        ({"answer": ""}, "answer"),
    ],
)
def test_a_bad_instance_is_refused_before_it_is_run(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInstance) as refused:
        HANDLER.validate(INSTANCE | changes)
    assert refused.value.field == field


@pytest.mark.slow
def test_a_key_is_parsed_in_init_and_only_where_it_has_to_be(in_child: InChild) -> None:
    for answer in ("7", 7, "yes", r"\frac{1}{2}"):
        plain: Any = SimpleNamespace(instance=INSTANCE | {"answer": answer}, in_child=no_child)
        assert HANDLER.init(plain) == {}
    good: Any = SimpleNamespace(instance=INSTANCE | {"answer": "x^2+1"}, in_child=in_child)
    assert HANDLER.init(good) == {}
    bad: Any = SimpleNamespace(instance=INSTANCE | {"answer": r"\foo{1}"}, in_child=in_child)
    with pytest.raises(BadInstance, match="cannot be parsed"):
        HANDLER.init(bad)


@pytest.mark.parametrize(("answer", "score"), [(r"\boxed{7}", 1.0), ("8", 0.0), (None, 0.0)])
def test_what_rollout_read_is_scored(answer: str | None, score: float) -> None:
    ctx: Any = SimpleNamespace(instance=INSTANCE, rollout={"answer": answer}, in_child=no_child)
    said = HANDLER.eval(ctx)
    assert (said["reward"], said["resolved"]) == (score, bool(score))
    assert said == HANDLER.eval(ctx)
