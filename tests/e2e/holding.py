"""A handler whose rollout keeps its sandbox until it is told to stop: `PRORL_HANDLERS=.../holding.py:HoldHandler`."""

from __future__ import annotations

import select
from collections.abc import Mapping
from typing import Any

from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext


class HoldHandler(Handler):
    """Starts a process that outlives its shell, then waits for `rollout_s`."""

    data_source = "hold"

    def image(self, instance: Mapping[str, Any]) -> str | None:
        return instance.get("image")

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        ctx.sandbox.shell.run(f"(setsid sleep {ctx.instance['mark']} &)", timeout=30)
        poll = select.poll()
        poll.register(ctx.cancel.fileno(), select.POLLIN)
        poll.poll(ctx.instance["rollout_s"] * 1000)
        ctx.cancel.raise_if_set()
        return {}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": 0.0}
