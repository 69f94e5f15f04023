"""A handler that is at one thing for ever: `PRORL_HANDLERS=.../deaf_handlers.py:DeafHandler`."""

from __future__ import annotations

import time
from typing import Any

from prorl_celery.handlers.base import EvalContext, Handler, InitContext, RolloutContext, StageContext
from prorl_celery.jobs.models import JobRequest

FOR_EVER_S = 3600.0


def never_end(_: object) -> None:
    while True:
        pass


class DeafHandler(Handler):
    """Does what the instance's `do` says, in its `stage`. Its `agent` acts first, if there is one."""

    data_source = "deaf"
    default_tools = ("bash",)

    def needs_kernel(self, job: JobRequest) -> bool:
        return job.instance.data()["do"] in ("kernel", "start")

    def init(self, ctx: InitContext) -> dict[str, Any]:
        return self._do(ctx, "init")

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        if ctx.instance["do"] == "model":
            ctx.run_agent([{"role": "user", "content": "Run the toy job."}])
        return self._do(ctx, "rollout")

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": 1.0, **self._do(ctx, "eval")}

    def _do(self, ctx: StageContext, stage: str) -> dict[str, Any]:
        if ctx.instance["stage"] == stage:
            getattr(self, ctx.instance["do"], lambda _: None)(ctx)
        return {}

    def shell(self, ctx: StageContext) -> None:
        sandbox = ctx.fresh_sandbox() if ctx.instance["stage"] == "eval" else ctx.sandbox
        sandbox.shell.run(f"sleep {FOR_EVER_S}", timeout=FOR_EVER_S)

    def kernel(self, ctx: StageContext) -> None:
        ctx.sandbox.kernel.run("while True: pass", timeout=FOR_EVER_S)

    def child(self, ctx: StageContext) -> None:
        ctx.in_child(never_end, 0, timeout=FOR_EVER_S)

    def spin(self, ctx: StageContext) -> None:
        never_end(ctx)

    def block(self, ctx: StageContext) -> None:
        time.sleep(FOR_EVER_S)
