"""Stages of jobs that have a sandbox, with a real keeper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from prorl_celery.errors import EvalError, SandboxError, Stopping
from prorl_celery.handlers.base import Handler, SandboxRequest
from prorl_celery.jobs.models import STAGES, JobRequest, JobStatus
from prorl_celery.sandbox.client import KeeperClient
from tasks.process import StageProcess

Drive = Callable[..., JobStatus]


class ScoredWhereItRan(Handler):
    """Leaves a file in rollout; eval fails the first time it looks at it."""

    data_source = "kept"

    def __init__(self) -> None:
        self.rolled = self.scored = 0

    def sandbox_request(self, job: JobRequest) -> SandboxRequest:
        return replace(super().sandbox_request(job), stages=STAGES)

    def rollout(self, ctx: Any) -> Any:
        self.rolled += 1
        ctx.sandbox.files.write("/workspace/left", b"by rollout")
        return {}

    def eval(self, ctx: Any) -> Any:
        self.scored += 1
        if self.scored == 1:
            raise EvalError("the grader stumbled")
        return {"reward": float(ctx.sandbox.files.read("/workspace/left") == b"by rollout")}


def test_an_eval_that_is_repeated_finds_the_rollouts_sandbox(drive: Drive, keeper: KeeperClient) -> None:
    handler = ScoredWhereItRan()
    status = drive(handler)
    assert (status.state, status.reward, status.attempt) == ("completed", 1.0, 1)
    assert (handler.rolled, handler.scored) == (1, 2)
    assert keeper.list() == []


def test_an_eval_that_ends_its_job_in_failure_ends_the_sandbox_too(drive: Drive, keeper: KeeperClient) -> None:
    status = drive(ScoredWhereItRan(), max_attempts=1)
    assert (status.state, status.reward) == ("failed", None)
    assert keeper.list() == []


class SlowStart(Handler):
    data_source = "slow"


def test_a_sandbox_whose_start_takes_all_the_stages_time_is_a_time_out_of_the_stage(
    drive: Drive, process: StageProcess, keeper: KeeperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, timeout: float, **__: object) -> None:
        process.deadlines.stop()  # the deadline's thread is late
        raise SandboxError(f"no shell within {timeout} s")

    monkeypatch.setattr(keeper, "begin", start)
    status = drive(SlowStart(), timeouts={"init": 1e-6})
    assert (status.state, status.stage) == ("timed_out", "init")


@pytest.mark.parametrize("doubtful", [False, True])
def test_a_stop_that_a_handler_makes_a_score_of_is_none(drive: Drive, keeper: KeeperClient, doubtful: bool) -> None:
    """By a handler that takes every exception for a failed test, as many do."""

    class Strict(ScoredWhereItRan):
        def eval(self, ctx: Any) -> Any:
            self.scored += 1
            try:
                if self.scored == 1 and doubtful:
                    ctx.cancel.process_is_stopping()
                    ctx.sandbox.shell.run("kill -9 $BASHPID", timeout=10.0)
                elif self.scored == 1:
                    ctx.cancel.set(Stopping("another takes over"))
                ctx.sandbox.shell.run("true", timeout=10.0)
            except Exception:  # noqa: BLE001 - that is what is odd about it
                return {"reward": 0.0}
            return {"reward": 1.0}

    handler = Strict()
    status = drive(handler)
    assert (status.state, status.reward, status.attempt) == ("completed", 1.0, 1)
    assert (handler.rolled, handler.scored) == (1, 2)
