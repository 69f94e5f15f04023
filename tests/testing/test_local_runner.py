"""One job at a time in this process: it has all that the stages ask of theirs, and what it starts ends with it."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from reward_stub import RewardStub

from prorl_celery.errors import BackendError
from prorl_celery.handlers.base import Handler, RolloutContext
from prorl_celery.jobs.models import JobRequest
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import Backend
from prorl_celery.settings import Settings
from prorl_celery.testing.local import LocalRunner
from prorl_celery.testing.local.process import LocalProcess
from prorl_celery.testing.local.registries import LocalBackends
from prorl_celery.testing.scripted.oracle import Oracle
from prorl_celery.testing.scripted.policies import make_policy
from tasks.nursery import Nursery

TASKS = Path(__file__).parents[2] / "tasks"
OF_THE_WORKER = {"beat", "breaking", "cradle", "intake", "listener", "nursery", "process", "worker"}
"""Modules of a process that has Celery and a heartbeat."""


class Asks(Handler):
    data_source = "asks"
    uses_sandbox = False
    default_tools = ("finish",)

    def rollout(self, ctx: RolloutContext) -> Any:
        return ctx.run_agent([{"role": "user", "content": ctx.instance["question"]}])

    def eval(self, ctx: Any) -> Any:
        return {"reward": float("7" in ctx.rollout["answer"])}


class Deaf(Asks):
    """Waits for something of its own, and hears nothing."""

    def rollout(self, ctx: RolloutContext) -> Any:
        threading.Event().wait(30.0)
        return super().rollout(ctx)


def job(**fields: Any) -> JobRequest:
    instance = {"data_source": "asks", "question": "What is 3 + 4?"}
    return JobRequest.model_validate({"job_id": "one", "instance": instance, "max_attempts": 1, **fields})


def test_the_process_has_all_that_the_stages_use(tmp_path: Path) -> None:
    settings = Settings(run_dir=tmp_path)
    nursery = Nursery()
    try:
        process = LocalProcess(Asks, settings, nursery, KeeperClient(settings))
        process.next_stage()
        used = {
            name
            for path in TASKS.glob("*.py")
            if path.stem not in OF_THE_WORKER
            for name in re.findall(r"\bprocess\.([a-z]\w*)", path.read_text())
        }
        assert len(used) > 12
        made_later = {"store", "beat"}  # with each job
        assert sorted(name for name in used - made_later if not hasattr(process, name)) == []
    finally:
        nursery.close()


def test_jobs_run_one_after_the_other_and_the_policy_may_change() -> None:
    with LocalRunner(Asks) as runner:
        run_dir = runner.process.settings.run_dir
        runner.play(make_policy("answer", Oracle([])))
        right = runner.run(job()).result
        runner.play(make_policy("answer:0", Oracle([])))
        wrong = runner.run(job()).result
    assert (right.state, right.reward, wrong.state, wrong.reward) == ("completed", 1.0, "completed", 0.0)
    assert right.segments[0].loss_mask
    assert not run_dir.exists()


def test_a_reward_server_scores_here_too() -> None:
    truth = {"data_source": "asks", "question": "What is 3 + 4?", "answer": "7"}
    with RewardStub(lambda body: {"score": 0.25, "why": "so so"}) as stub, LocalRunner(Asks) as runner:
        runner.play(make_policy("answer", Oracle([])))
        result = runner.run(job(instance=truth, reward_url=stub.url)).result
    assert (result.state, result.reward, result.resolved) == ("completed", 0.25, None), result.error
    assert result.eval["reward_server"]["said"] == {"why": "so so"}
    (body,) = stub.bodies
    assert "7" in body.pop("solution_str")
    assert body == {"ground_truth": "7", "data_source": "asks"}


def test_a_stage_that_does_not_stop_is_told_of_and_not_waited_for() -> None:
    with LocalRunner(Deaf, Settings(wedge_grace_seconds=0.4)) as runner:
        runner.play(make_policy("answer", Oracle([])))
        outcome = runner.run(job(timeouts={"rollout": 0.2}))
    assert outcome.stuck is not None
    assert "rollout of one was told to stop" in outcome.stuck
    assert (outcome.result.state, outcome.result.reward) == ("timed_out", None)


def test_without_a_backend_the_job_says_so() -> None:
    with LocalRunner(Asks, Settings(backend_wait_seconds=0.2)) as runner:
        error = runner.run(job()).result.error
    assert error is not None
    assert (error.kind, error.message) == ("backend", "no backend for any model within 0.2 s")


def test_a_backend_is_chosen_as_the_heap_would() -> None:
    backends = LocalBackends()
    tokens = Backend(url="http://a", model="m", api_key=None, gives_ids=True, policy_version=3)
    backends.serve_only(tokens)
    ask: dict[str, Any] = {"model": None, "mode": None}
    assert backends.acquire("j", 1, **ask) == tokens
    assert backends.acquire("j", 1, **(ask | {"mode": "tokens"})) == tokens
    assert backends.acquire("j", 1, **(ask | {"mode": "chat", "policy_version": 3})) == tokens
    assert backends.acquire("j", 1, **ask, policy_version=4) is None
    assert backends.acquire("j", 1, **ask, exclude=("http://a",)) is None
    assert backends.acquire("j", 1, **(ask | {"model": "other"})) is None
    assert (backends.change("http://a", more_errors=2) or tokens).errors == 2
    backends.serve_only(tokens.model_copy(update={"kind": "chat", "gives_ids": False}))
    assert backends.acquire("j", 1, **(ask | {"mode": "tokens"})) is None
    backends.serve_only(tokens, tokens.model_copy(update={"url": "http://b", "model": "n"}))
    with pytest.raises(BackendError, match="name a model: m, n are served"):
        backends.acquire("j", 1, **ask)
