"""What the `code` handler asks the model for, and what it takes for the solution."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prorl_celery.handlers.code import SOLUTION_LIMIT_BYTES, CodeHandler
from prorl_celery.handlers.registry import load_handlers
from prorl_celery.jobs.models import JobRequest
from prorl_celery.settings import Settings

TESTS = [{"input": "SECRET-IN", "output": "SECRET-OUT"}]
INSTANCE = {"data_source": "code", "prompt": "Print it twice.", "tests": TESTS, "canonical_solution": "SECRET-CODE"}
HUMAN_EVAL = {
    "data_source": "code",
    "prompt": "def f(n):\n",
    "entry_point": "f",
    "test": "def check(c): assert c('SECRET-IN')\n",
}


class Files:
    def __init__(self, data: bytes | None) -> None:
        self.data = data

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        if self.data is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        if len(self.data) > limit_bytes:
            raise OSError(27, "too long", path)
        return self.data


def job_of(instance: dict[str, Any] = INSTANCE, tools: list[str] | None = None) -> JobRequest:
    return JobRequest.model_validate({"job_id": "j", "instance": instance, "agent": {"tools": tools}})


def rolled_out(data: bytes | None, *, tools: list[str] | None = None, answer: str = "", **fields: Any) -> Any:
    """What rollout returns, and the messages that began it."""
    seen: list[Any] = []

    def run_agent(messages: Any) -> dict[str, Any]:
        seen.extend(messages)
        return {"finish_reason": "stop", "answer": answer, "turns": 1}

    instance = {**INSTANCE, **fields}
    ctx: Any = SimpleNamespace(
        job=job_of(instance, tools), instance=instance, run_agent=run_agent, sandbox=SimpleNamespace(files=Files(data))
    )
    return CodeHandler().rollout(ctx), seen


def test_the_names_of_its_data_sets_are_its_own() -> None:
    handlers = load_handlers(Settings())
    for name in ("code", "deepcoder", "codecontests", "apps", "codeforces", "taco"):
        assert isinstance(handlers.find(name), CodeHandler)


@pytest.mark.parametrize("instance", [INSTANCE, HUMAN_EVAL])
@pytest.mark.parametrize("tools", [None, []])
def test_no_hidden_test_stands_in_what_the_model_reads(instance: dict[str, Any], tools: list[str] | None) -> None:
    _, messages = rolled_out(b"", tools=tools, **instance)
    text = "".join(message["content"] for message in messages)
    assert instance["prompt"].strip() in text
    assert "SECRET" not in text


def test_the_solution_is_the_file_that_the_agent_left() -> None:
    said, messages = rolled_out("print('é')".encode(), answer="```python\nno\n```")
    assert said == {"solution": "print('é')", "artifacts": {"solution.py": "print('é')"}}
    assert "/workspace/solution.py" in messages[-1]["content"]


def test_another_language_has_another_file() -> None:
    said, messages = rolled_out(b"int main() {}", language="cpp")
    assert said["artifacts"] == {"solution.cpp": "int main() {}"}
    assert "C++" in messages[-1]["content"]
    assert "/workspace/solution.cpp" in messages[-1]["content"]


@pytest.mark.parametrize(
    ("data", "why"),
    [(None, "No such file"), (b"\xff", "not UTF-8"), (b"x" * (SOLUTION_LIMIT_BYTES + 1), "too long")],
)
def test_no_solution_is_worth_nothing_and_says_why(data: bytes | None, why: str) -> None:
    said, _ = rolled_out(data, answer="```python\nprint(1)\n```")
    assert said["solution"] is None
    ctx: Any = SimpleNamespace(instance=INSTANCE, rollout=said)
    verdict = CodeHandler().eval(ctx)
    assert (verdict["reward"], verdict["resolved"]) == (0.0, False)
    assert why in verdict["why"]


@pytest.mark.parametrize("tools", [[], ["finish"], ["think", "finish"]])
def test_a_job_without_tools_of_a_sandbox_has_none_and_says_its_solution(tools: list[str]) -> None:
    assert CodeHandler().needs_sandbox(job_of(tools=tools)) is False
    said, messages = rolled_out(b"of no interest", tools=tools, answer="So:\n```python\nprint(1)\n```\n")
    assert said["solution"] == "print(1)\n"
    assert "```python" in messages[-1]["content"]


@pytest.mark.parametrize("tools", [None, ["bash"], ["ipython", "finish"], ["str_replace_editor"]])
def test_a_job_with_such_tools_has_one(tools: list[str] | None) -> None:
    assert CodeHandler().needs_sandbox(job_of(tools=tools)) is True


def test_an_answer_without_a_block_of_code_is_worth_nothing() -> None:
    said, _ = rolled_out(None, tools=[], answer="print(1)")
    assert said == {"solution": None, "why": "the answer has no fenced block of code that ends"}
