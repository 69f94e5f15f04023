"""Jobs whose reward a server gives, and rewards that are shaped, through the real stages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from reward_stub import RewardStub, forever

from prorl_celery.errors import Cancelled
from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext, SandboxRequest
from prorl_celery.jobs.models import JobRequest, JobStatus, Result
from prorl_celery.jobs.turns import Turn, ids_array, logprobs_array
from prorl_celery.sandbox.client import KeeperClient
from tasks.process import StageProcess
from web.rendering import result_pieces

SHAPING = {
    "overlong": {"max_tokens": 10, "buffer_tokens": 5, "penalty": 1.0},
    "repetition": {"ngram": 1, "penalty": 0.5},
}


class Talker(Handler):
    """Says the instance's `says` in one turn, as that many tokens `ids`."""

    data_source = "talker"
    uses_sandbox = False

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        ids = [int(one) for one in ctx.instance.get("ids", "").split()]
        turn = Turn(
            index=0,
            new_segment=True,
            sampled_ids=ids_array(ids),
            logprobs=logprobs_array([-0.1] * len(ids)),
            versions=ids_array([1] * len(ids)),
            completion_tokens=len(ids),
            messages=[{"role": "assistant", "content": ctx.instance.get("says", "")}],
        )
        work: Any = ctx._work  # type: ignore[attr-defined]
        work.process.store.append_turn(work.claim, turn)
        return {"answer": ctx.instance.get("answer")}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        verdict = {"reward": 1.0, "resolved": True, **ctx.instance.get("verdict", {})}
        if levels := ctx.instance.get("levels"):
            verdict["why"] = json.loads("[" * levels + "]" * levels)
        return verdict


Drive = Callable[..., JobStatus]


@pytest.fixture
def run(drive: Drive, process: StageProcess) -> Callable[..., Result]:
    def running(instance: dict[str, Any] | None = None, **fields: Any) -> Result:
        drive(Talker(), instance={"data_source": "talker", **(instance or {})}, max_attempts=1, **fields)
        return process.store.result("a")

    return running


Run = Callable[..., Result]


def test_the_result_has_the_shaped_reward_the_raw_one_and_the_parts(run: Run) -> None:
    verdict = {"reward_parts": {"tests": 1, "style": 0.5}}
    result = run({"ids": "1 2 3 4 1 2 3 4", "verdict": verdict}, reward_shaping=SHAPING)
    assert result.reward == 1.0 - 3 / 5 - 0.5 * 0.5
    assert result.resolved is True
    assert result.eval["raw_reward"] == 1.0
    assert result.eval["reward"] == result.reward
    assert result.eval["reward_parts"] == {"tests": 1.0, "style": 0.5, "overlong": -3 / 5, "repetition": -0.25}


def test_without_shaping_the_eval_is_told_as_it_was(run: Run) -> None:
    result = run({"ids": "1 1 1 1 1 1 1 1 1 1 1 1", "verdict": {"note": "x"}})
    assert result.reward == 1.0
    assert result.eval == {"reward": 1.0, "resolved": True, "note": "x"}


def test_parts_are_kept_as_floats(run: Run) -> None:
    parts = run({"verdict": {"reward_parts": {"tests": 1}}}).eval["reward_parts"]
    assert [(name, type(value), value) for name, value in parts.items()] == [("tests", float, 1.0)]


def test_no_parts_and_shaping_are_parts_of_the_shaping_alone(run: Run) -> None:
    result = run({"ids": "1 2", "verdict": {"reward_parts": None}}, reward_shaping=SHAPING)
    assert result.reward == 1.0
    assert result.eval["reward_parts"] == {"overlong": 0.0, "repetition": 0.0}


def test_bad_parts_are_a_failure_of_eval_and_never_a_reward(run: Run) -> None:
    result = run({"verdict": {"reward_parts": {"tests": "many"}}})
    assert (result.state, result.reward) == ("failed", None)
    assert result.error is not None
    assert result.error.kind == "eval"
    assert "tests" in result.error.message


def test_a_server_scores_instead_of_the_handlers_eval(run: Run) -> None:
    with RewardStub(lambda body: {"score": 0.5, "why": "so so"}) as stub:
        result = run({"answer": "7", "says": "seven"}, reward_url=stub.url)
    assert (result.state, result.reward, result.resolved) == ("completed", 0.5, None)
    assert stub.bodies == [{"solution_str": "7", "ground_truth": "7", "data_source": "talker"}]
    assert result.eval["reward_server"]["said"] == {"why": "so so"}
    assert result.eval["reward_server"]["url"] == stub.url


def test_the_last_thing_said_is_the_solution_where_there_is_no_answer(run: Run) -> None:
    with RewardStub() as stub:
        run({"says": "I give up", "answer": None, "ground_truth": {"x": [1]}}, reward_url=stub.url)
    assert stub.bodies == [{"solution_str": "I give up", "ground_truth": {"x": [1]}, "data_source": "talker"}]


def test_what_a_server_scored_is_shaped_too(run: Run) -> None:
    with RewardStub(lambda body: 0.5) as stub:
        result = run({"ids": "1 1 1 1", "answer": "7"}, reward_url=stub.url, reward_shaping=SHAPING)
    assert result.reward == 0.5 - 0.5 * 0.75
    assert result.eval["raw_reward"] == 0.5


@pytest.mark.parametrize(
    ("answer", "retryable"),
    [({"score": "1.0"}, False), ("<html>", False), (lambda: web.Response(status=404), False), (None, True)],
)
def test_trouble_with_the_server_is_an_error_of_eval_and_never_a_zero(run: Run, answer: Any, retryable: bool) -> None:
    with RewardStub(lambda body: answer() if callable(answer) else forever() if answer is None else answer) as stub:
        result = run({"answer": "7"}, reward_url=stub.url, timeouts={"eval": 60.0 if answer else 1.0})
    assert (result.state, result.reward) == ("failed", None)
    assert result.error is not None
    assert (result.error.kind, result.error.stage, result.error.retryable) == ("eval", "eval", retryable)


def test_a_node_asks_no_server_that_its_setting_does_not_allow(run: Run, process: StageProcess) -> None:
    with RewardStub() as stub:
        process.settings = process.settings.with_(reward_urls=("http://elsewhere/",))
        result = run({"answer": "7"}, reward_url=stub.url)
    assert result.error is not None
    assert "PRORL_REWARD_URLS" in result.error.message
    assert stub.bodies == []


class Graded(Talker):
    """Its own eval would have a sandbox."""

    def sandboxes(self, job: JobRequest) -> dict[str, SandboxRequest]:
        return {"grader": SandboxRequest(stages=("eval",))}


@pytest.mark.usefixtures("eval_works_here")
@pytest.mark.parametrize("by_server", [True, False])
def test_no_sandbox_is_started_ahead_for_an_eval_that_a_server_does(
    drive: Drive, keeper: KeeperClient, by_server: bool
) -> None:
    before = keeper.status()["starts"]
    with RewardStub() as stub:
        instance = {"data_source": "talker", "answer": "7"}
        status = drive(Graded(), instance=instance, reward_url=stub.url if by_server else None)
    assert (status.state, status.reward, len(stub.bodies)) == ("completed", 1.0, int(by_server))
    assert keeper.status()["starts"] - before == (0 if by_server else 1)
    assert keeper.list() == []


def test_a_cancel_reaches_the_server(drive: Drive, process: StageProcess) -> None:
    class Leaver(Talker):
        def solution(self, ctx: EvalContext) -> str:
            signal: Any = ctx.cancel

            def leave() -> None:
                assert stub.arrived.wait(10)
                signal.set(Cancelled("somebody cancelled"))

            self.thread = threading.Thread(target=leave)
            self.thread.start()
            return "x"

    handler = Leaver()
    with RewardStub(lambda body: forever()) as stub:
        status = drive(handler, instance={"data_source": "talker", "answer": "7"}, reward_url=stub.url, max_attempts=1)
        assert stub.aborted.wait(5)
    handler.thread.join(10)
    assert status.state == "cancelled"


@pytest.mark.parametrize("levels", [90, 300])
def test_a_verdict_that_nests_too_deep_is_the_handlers_fault_and_no_result_that_nobody_can_read(
    run: Callable[..., Result], levels: int
) -> None:
    result = run({"says": "x", "levels": levels})
    assert Result.model_validate_json(b"".join(result_pieces(result))) == result
    if levels == 90:
        assert (result.reward, str(result.eval["why"]).count("[")) == (1.0, 90)
    else:
        assert result.error is not None
        assert (result.error.kind, result.reward) == ("handler", None)
        assert "nested deeper than 100 levels" in result.error.message
