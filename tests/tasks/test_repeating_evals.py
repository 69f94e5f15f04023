"""What an eval meets that another try cures costs no rollout: a reward server, a judge or a sandbox that was away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from reward_stub import RewardStub

from prorl_celery.errors import BackendError, EvalError, SandboxError, StageError
from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext, SandboxRequest
from prorl_celery.jobs.models import STAGES, JobRequest, JobStatus
from prorl_celery.jobs.turns import Turn
from prorl_celery.sandbox.client import KeeperClient
from tasks.process import StageProcess

Drive = Callable[..., JobStatus]
INSTANCE = {"data_source": "once", "answer": "7"}


class RolledOutOnce(Handler):
    """Says one turn in rollout, and counts; eval raises what it is given, one after the other."""

    data_source = "once"
    uses_sandbox = False

    def __init__(self, *errors: StageError) -> None:
        self.errors = list(errors)
        self.rolled = 0

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        self.rolled += 1
        work: Any = ctx._work  # type: ignore[attr-defined]
        work.process.store.append_turn(work.claim, Turn(index=0, messages=[{"role": "assistant", "content": "7"}]))
        return {"answer": "7"}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        if self.errors:
            raise self.errors.pop(0)
        return {"reward": float(ctx.rollout["answer"] == ctx.instance["answer"])}


def happened(process: StageProcess) -> list[str]:
    """What the job went through, but for its queues."""
    return [event.what for event in process.store.events("a") if not event.what.startswith(("queued", "running"))]


def test_a_reward_server_that_was_away_is_asked_again_by_another_eval(drive: Drive, process: StageProcess) -> None:
    """Away for longer than an eval has time: down, then up."""

    def answer(body: dict[str, Any]) -> Any:
        return {"score": 0.75} if "failed eval eval" in happened(process) else web.Response(status=503)

    handler = RolledOutOnce()
    with RewardStub(answer) as stub:
        status = drive(handler, instance=INSTANCE, reward_url=stub.url, timeouts={"eval": 1.0})
    assert (status.state, status.reward, status.attempt, handler.rolled) == ("completed", 0.75, 1, 1)
    assert happened(process) == ["turn 0", "failed eval eval", "ended completed"]
    assert len(process.store.result("a").turns) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [(BackendError("no judge"), "backend"), (SandboxError("none starts"), "sandbox"), (EvalError("it fell"), "eval")],
)
def test_an_eval_that_failed_is_repeated_until_its_tries_are_used(
    drive: Drive, process: StageProcess, error: StageError, kind: str
) -> None:
    handler = RolledOutOnce(error, error)
    status = drive(handler, instance=INSTANCE)
    assert (status.state, status.reward, status.attempt, handler.rolled) == ("completed", 1.0, 1, 1)
    assert happened(process) == ["turn 0", *[f"failed eval {kind}"] * 2, "ended completed"]


def test_after_the_last_try_it_is_a_dead_letter_with_its_trajectory(drive: Drive, process: StageProcess) -> None:
    handler = RolledOutOnce(*[BackendError("no judge")] * 3)
    status = drive(handler, instance=INSTANCE, max_attempts=3)
    assert status.error is not None
    assert (status.state, status.reward, status.attempt, handler.rolled) == ("failed", None, 1, 1)
    assert (status.error.kind, status.error.stage) == ("backend", "eval")
    assert [dead.job_id for dead in process.store.dead().statuses] == ["a"]
    assert len(process.store.result("a").turns) == 1
    assert handler.errors == []


def test_what_another_try_would_not_cure_ends_the_job_at_once(drive: Drive, process: StageProcess) -> None:
    handler = RolledOutOnce()
    with RewardStub(lambda body: web.Response(status=404)) as stub:
        status = drive(handler, instance=INSTANCE, reward_url=stub.url)
    assert (status.state, status.reward, len(stub.bodies)) == ("failed", None, 1)
    assert process.store.dead().statuses == []


class InTheAgentsSandbox(RolledOutOnce):
    """Looks at what rollout left there; the first time the sandbox has died."""

    uses_sandbox = True

    def sandbox_request(self, job: JobRequest) -> SandboxRequest:
        return replace(super().sandbox_request(job), stages=STAGES)

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        ctx.sandbox.files.write("/workspace/left", b"by rollout")
        return super().rollout(ctx)

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        work: Any = ctx._work  # type: ignore[attr-defined]
        if self.rolled == 1:
            for sandbox in work.process.keeper.list():
                work.process.keeper.stop(sandbox["sandbox_id"])
        return {"reward": float(ctx.sandbox.files.read("/workspace/left") == b"by rollout")}


def test_one_whose_sandbox_of_rollout_has_died_starts_over_and_that_is_not_charged(
    drive: Drive, process: StageProcess, keeper: KeeperClient
) -> None:
    handler = InTheAgentsSandbox()
    status = drive(handler, instance=INSTANCE)
    assert (status.state, status.reward, status.attempt, handler.rolled) == ("completed", 1.0, 1, 2), status.error
    assert process.store.counters()["started_over"] == 1
    assert keeper.list() == []
