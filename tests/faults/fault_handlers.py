"""Handlers that hurt the process they run in: `PRORL_HANDLERS=.../fault_handlers.py:HurtHandler`.

What must happen once, or be seen from outside, is a file in the folder that `FAULT_MARKS` names: `<mark>.<what>`.
A job whose id holds `.die-at-<point>.` kills its worker, once, at a point in our own code: `claim` (the message is
taken from the queue, the job is not claimed), `publish` (a stage is committed, its message not published), `append` (a
turn is in the log, the next has not begun), `commit` and `finish` (the work is done and not written down).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prorl_celery.app import Publisher
from prorl_celery.handlers.base import EvalContext, Handler, InitContext, RolloutContext, StageContext
from prorl_celery.jobs.store import JobStore


def note(mark: str, what: str, text: str = "") -> None:
    """Leave a note; a line for each time."""
    with (Path(os.environ["FAULT_MARKS"]) / f"{mark}.{what}").open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


def first_time(mark: str, what: str) -> bool:
    """Whether this has not happened before, in any process."""
    try:
        (Path(os.environ["FAULT_MARKS"]) / f"{mark}.{what}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def fall_asleep_in_a_child(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def _dies_at(point: str, owner: type, method: str, job_of: Callable[..., str], *, after: bool) -> None:
    real = getattr(owner, method)

    def dangerous(*arguments: Any, **named: Any) -> Any:
        job_id = job_of(*arguments, **named)
        deadly = f".die-at-{point}." in job_id and first_time(job_id, f"died-at-{point}")
        if deadly and not after:
            die()
        answer = real(*arguments, **named)
        if deadly:
            die()
        return answer

    setattr(owner, method, dangerous)


def _id_of_claim(store: Any, claim: Any, *_: Any, **__: Any) -> str:
    return str(claim.job_id)


def _shift_clock(file: Path) -> None:
    """Let this process's wall clock be off by as many seconds as the file says, from one moment to the next."""
    real = time.time

    def shifted() -> float:
        return real() + float(file.read_text() or 0)

    time.time = shifted


if "FAULT_CLOCK" in os.environ:
    _shift_clock(Path(os.environ["FAULT_CLOCK"]))

if "FAULT_MARKS" in os.environ:
    _dies_at("claim", JobStore, "claim", lambda store, stage, job_id, *_, **__: str(job_id), after=False)
    _dies_at("publish", Publisher, "publish", lambda publisher, message: str(message.job_id), after=False)
    _dies_at("append", JobStore, "append_turn", _id_of_claim, after=True)
    _dies_at("commit", JobStore, "commit", _id_of_claim, after=False)
    _dies_at("finish", JobStore, "finish", _id_of_claim, after=False)


class HurtHandler(Handler):
    """Does the instance's `do` in its `stage`, unless that says that it should happen once and it did."""

    data_source = "hurt"
    uses_sandbox = False

    def init(self, ctx: InitContext) -> dict[str, Any]:
        return self._act(ctx, "init")

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        return self._act(ctx, "rollout")

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": 1.0} | self._act(ctx, "eval")

    def _act(self, ctx: StageContext, stage: str) -> dict[str, Any]:
        what = ctx.instance
        note(what["mark"], stage)
        if what["stage"] != stage or (what["do"].startswith("once-") and not first_time(what["mark"], "hurt")):
            return {}
        match what["do"].removeprefix("once-"):
            case "die":
                die()
            case "raise":
                raise RuntimeError("on demand")
            case "block":  # in code that knows nothing of any signal
                time.sleep(what["seconds"])
            case "wait":
                ctx.cancel.wait(what["seconds"])
            case "spin":
                end = time.monotonic() + what["seconds"]
                while time.monotonic() < end:
                    pass
            case "child":
                ctx.in_child(fall_asleep_in_a_child, what["seconds"], timeout=what["seconds"] + 60)
            case "large":
                return {"blob": os.urandom(what["seconds"]).hex()}
            case other:
                raise ValueError(f"nobody knows how to {other}")
        return {}


class NapHandler(Handler):
    """Waits in a shell command of its sandbox. Samples of a batch that `for_good` names wait until that is killed."""

    data_source = "nap"

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        named = ctx.instance.get("for_good", ())
        seconds = 600 if named and _sample_of(ctx) in named else ctx.instance["seconds"]
        ctx.sandbox.shell.run(f"sleep {seconds}", timeout=seconds + 60)
        return {}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": 1.0}

    def image(self, instance: Mapping[str, Any]) -> str | None:
        return None


class ScoreHandler(Handler):
    """A sample of a batch's prompt: waits for `seconds`, and until its `gate` is open where it has one; scores what
    `rewards` says for its number. Those that `fails` names, `K` or `K:rN`, or all by `*`, raise instead.
    """

    data_source = "score"
    uses_sandbox = False

    def init(self, ctx: InitContext) -> dict[str, Any]:
        note(ctx.job.job_id, "init")
        return {}

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        what, sample = ctx.instance, _sample_of(ctx)
        note(ctx.job.job_id, "rollout")
        ctx.cancel.wait(what["seconds"])
        if gate := what.get("gate"):
            while not (Path(os.environ["FAULT_MARKS"]) / f"{gate}.open").exists():
                ctx.cancel.wait(0.02)
        if sample in what.get("fails", ()) or "*" in what.get("fails", ()):
            raise RuntimeError("on demand")
        return {}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        note(ctx.job.job_id, "eval")
        ctx.cancel.wait(ctx.instance.get("eval_seconds", 0.0))
        return {"reward": ctx.instance["rewards"][int(_sample_of(ctx).partition(":")[0])]}


def _sample_of(ctx: StageContext) -> str:
    """`K`, or `K:rN` where it was drawn anew, of a job <batch>:<prompt>:K[:rN]."""
    batch, _, redraw = ctx.job.job_id.partition(":r")
    sample = batch.rpartition(":")[2]
    return f"{sample}:r{redraw}" if redraw else sample
