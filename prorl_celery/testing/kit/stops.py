"""Checks of what a handler does when it is stopped: cancelled, out of time, without its sandbox, dead."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from prorl_celery.errors import SandboxError, Stopping
from prorl_celery.jobs.models import Stage, State
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.testing.kit.bench import Bench, Run
from prorl_celery.testing.kit.case import ContractBroken
from prorl_celery.testing.kit.scores import check_nothing_left

LEAST_SECONDS = 0.02
"""A stage that takes less is not stopped in its middle: the news would come too late."""

Act = Callable[[], None]


def stops_when_cancelled(bench: Bench, stage: Stage) -> None:
    """A cancel at the stage's beginning, and one in its middle, end the job within seconds."""

    def cancel() -> None:
        process = bench.runner.process
        store: Any = process.store
        store.cancel()
        process.beat.cancel(store.job.job_id)

    for when, delay in _moments(bench, stage):
        _stop(bench, stage, cancel, f"cancelled {when} {stage}", "cancelled", delay)


def stops_when_time_is_up(bench: Bench, stage: Stage) -> None:
    """A stage whose time is up ends the job within seconds, as timed out."""

    def overrun() -> None:
        bench.tell(lambda held: held.clock.overran() if held.claim.stage == stage else None)

    _stop(bench, stage, overrun, f"told that the time of {stage} was up", "timed_out", 0.0)


def scores_nothing_without_its_sandbox(bench: Bench, stage: Stage) -> None:
    """When a stage's sandboxes are lost, the job has an error and no reward: what failed is not the agent's answer."""
    plain = bench.scored()
    process = bench.runner.process
    keeper = process.keeper

    def lose(ctx: Any) -> None:
        for name in ctx.sandboxes:
            keeper.stop(ctx.sandboxes[name].handle.sandbox_id)
        process.keeper = NoMore(process.settings)

    try:
        run = bench.run(happenings={stage: lose})
    finally:
        process.keeper = keeper
    reward = run.result.reward
    if reward is not None and reward != plain.result.reward:
        raise ContractBroken(
            f"its sandbox was lost in {stage}, and the job was scored {reward}; a fault of the machine is no answer of "
            "the agent's: let SandboxError pass"
        )
    check_nothing_left(run, f"when the sandbox was lost in {stage}")


def goes_on_after_a_death(bench: Bench) -> None:
    """A rollout whose process is lost, behind its first turn or at its very end, comes to the same in another one."""
    plain = bench.scored()

    def die(step: str) -> None:
        if step == "turn 0":
            bench.tell(lambda held: held.signal.set(Stopping("the worker is stopping")))

    once: list[str] = []

    def die_once(step: str) -> None:
        if not once:
            once.append(step)
            die(step)

    _check_same(plain, bench.run(seen=die_once), "behind the first turn", bench)
    _check_same(plain, bench.run(lose_before="commit rollout"), "at the end of rollout", bench)


def scores_the_same_twice(bench: Bench) -> None:
    """An eval that is repeated, since its process was lost before it could say the score, gives the same score."""
    run = bench.run(lose_before="finish")
    scores = [_score(value) for value in run.values("eval")]
    if len(scores) != 2 or scores[0] != scores[1]:
        told = " and then ".join(json.dumps(value) for value in scores) or "nothing"
        raise ContractBroken(
            f"eval, called a second time after its process was lost, must give the same; it gave {told}; {run.story}. "
            "Score in a fresh sandbox, and change nothing that eval reads"
        )
    check_nothing_left(run, "behind an eval that was repeated")


class NoMore(KeeperClient):
    """A keeper that starts nothing and opens nothing any more."""

    def start(self, *_: Any, **__: Any) -> Any:
        raise SandboxError("no sandbox can be started: the test kit plays a node that is in trouble")

    def begin(self, *_: Any, **__: Any) -> Any:
        raise SandboxError("no sandbox can be started: the test kit plays a node that is in trouble")

    def attach(self, *_: Any, **__: Any) -> Any:
        raise SandboxError("the sandbox is gone: the test kit plays a node that is in trouble")


def _moments(bench: Bench, stage: Stage) -> list[tuple[str, float]]:
    seconds = sum(visit.seconds for visit in bench.plain().visits if visit.stage == stage)
    return [("at the beginning of", 0.0)] + ([("amid", seconds / 2)] if seconds >= LEAST_SECONDS else [])


def _stop(bench: Bench, stage: Stage, act: Act, told: str, wanted: State, delay: float) -> None:
    limit = bench.case.stop_seconds
    acted: list[float] = []

    def do() -> None:
        acted.append(time.monotonic())
        act()

    timer = threading.Timer(delay, do)
    timer.name = "slot timer"
    run = bench.run(happenings={stage: lambda ctx: timer.start() if delay else do()})
    timer.cancel()
    if not acted:
        if delay or stage not in {visit.stage for visit in run.visits}:
            return  # it was over before, or never came so far, which other checks tell
        raise ContractBroken(f"{stage} was never called")
    took = run.ended_at - acted[0]
    if run.stuck or took > limit:
        how = "did not end at all" if run.stuck else f"took {took:.1f} s to end"
        raise ContractBroken(
            f"{told}, the job {how}; it must within {limit:g} s. Wait by what heeds `ctx.cancel`: sandboxes, "
            "`run_agent`, `ctx.in_child`, or `ctx.cancel.raise_if_set()` in a loop of your own"
        )
    late = delay > 0 and run.result.state == "completed"  # the stage was done when the news came
    if run.result.state != wanted and not late:
        raise ContractBroken(f"{told}, the job must end as {wanted}, but {run.story}")
    check_nothing_left(run, told)


def _check_same(plain: Run, run: Run, when: str, bench: Bench) -> None:
    if _score_of(plain) != _score_of(run):
        raise ContractBroken(
            f"the process of rollout was lost {when}, and another went on: without that the reward was "
            f"{plain.result.reward}, but {run.story}. {_ADVICE}"
        )
    first, again = plain.values("rollout")[-1], run.values("rollout")[-1:]
    if bench.case.handler.resumes and again and _without_times(first) != _without_times(again[0]):
        raise ContractBroken(
            f"the process of rollout was lost {when}, and another went on: without that rollout returned {first!r}, "
            f"and with it {again[0]!r}. {_ADVICE}"
        )
    check_nothing_left(run, f"when the process of rollout was lost {when}")


_ADVICE = (
    "Rollout is called again from its start, in the same sandboxes; what it does besides `run_agent` must bear being "
    "done again, or say `resumes = False`"
)


def _score_of(run: Run) -> Any:
    return run.result.reward, run.result.resolved


def _score(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: value.get(name) for name in ("reward", "resolved", "reward_parts") if name in value}


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: inner for name, inner in value.items() if not str(name).endswith(("seconds", "_s", "time"))}
        return {name: _without_times(inner) for name, inner in kept.items()}
    return [_without_times(inner) for inner in value] if isinstance(value, list | tuple) else value
