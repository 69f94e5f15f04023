"""Handlers that benchmarks and tests load through `PRORL_HANDLERS`; they are no task kinds of the service."""

from __future__ import annotations

import select
from collections.abc import Mapping
from typing import Any

from prorl_celery.handlers.base import EvalContext, Handler, InitContext, RolloutContext, StageContext, require


class NoopHandler(Handler):
    """Three stages that do nothing: what is left is the pipeline's own cost."""

    data_source = "noop"
    uses_sandbox = False

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        return {}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": 0.0, "resolved": False}


class WaitHandler(Handler):
    """Stages that wait for as long as the instance's `init_s`, `rollout_s` and `eval_s` say."""

    data_source = "wait"
    uses_sandbox = False

    def validate(self, instance: Mapping[str, Any]) -> None:
        for stage in ("init", "rollout", "eval"):
            require(instance, f"{stage}_s", (int, float))

    def init(self, ctx: InitContext) -> dict[str, Any]:
        return _wait(ctx, "init_s")

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        return _wait(ctx, "rollout_s")

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": 0.0} | _wait(ctx, "eval_s")


class ToyHandler(Handler):
    """The job on which peers were measured: five turns, one shell command in each of the first four."""

    data_source = "toy"
    default_tools = ("bash",)

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        return ctx.run_agent([{"role": "user", "content": ctx.instance.get("problem", "Run the toy job.")}])

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": float(ctx.rollout["turns"] == 5)}


class StepsHandler(Handler):
    """Runs the instance's `commands`, one a turn (policy `obey`), then reads what they wrote into the file `steps`:
    right when that is the instance's `steps`, each once, whatever happened to its workers meanwhile.
    """

    data_source = "steps"
    default_tools = ("bash",)

    def validate(self, instance: Mapping[str, Any]) -> None:
        for field in ("commands", "steps"):
            require(instance, field, list)

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        task = "\n".join(f"$ {command}" for command in ctx.instance["commands"])
        outcome = ctx.run_agent([{"role": "user", "content": task}])
        left = ctx.sandbox.shell.run("cat /workspace/steps", timeout=30.0).output.split()
        return {**outcome, "steps": left, "artifacts": {"steps": left}}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": float(ctx.rollout["steps"] == ctx.instance["steps"])}


def _wait(ctx: StageContext, field: str) -> dict[str, Any]:
    poll = select.poll()
    poll.register(ctx.cancel.fileno(), select.POLLIN)
    poll.poll(ctx.instance[field] * 1000)
    ctx.cancel.raise_if_set()
    return {}
