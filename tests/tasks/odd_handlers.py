"""Handlers that do not listen, or that do harm. Their instances name a folder in which they leave notes."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext


def note(instance: Mapping[str, Any], what: str) -> None:
    """Leave a note; a line for each time, with the process that left it."""
    with (Path(instance["notes"]) / what).open("a") as file:
        file.write(f"{os.getpid()}\n")


def kill_the_nursery(pid: int) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


def wait_for_the_end(_: object) -> None:
    signal.pause()


class OddHandler(Handler):
    """Its rollout does what the instance's `do` says."""

    data_source = "odd"
    uses_sandbox = False

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        note(ctx.instance, f"{ctx.job.job_id}.began")
        getattr(self, ctx.instance["do"])(ctx)
        note(ctx.instance, f"{ctx.job.job_id}.done")
        return {}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": 1.0}

    def nothing(self, ctx: RolloutContext) -> None:
        """End at once."""

    def spin(self, ctx: RolloutContext) -> None:
        """Never end, in Python."""
        while True:
            pass

    def ignore(self, ctx: RolloutContext) -> None:
        """Never end, in Python, and take no exception for an answer."""
        while True:
            try:
                self.spin(ctx)
            except BaseException:  # noqa: BLE001 - that is what is odd about it
                note(ctx.instance, f"{ctx.job.job_id}.ignored")

    def block(self, ctx: RolloutContext) -> None:
        """Sleep in C, deaf to everything, for an hour."""
        time.sleep(3600.0)

    def listen(self, ctx: RolloutContext) -> None:
        """Wait as one should, for the instance's `seconds`."""
        poll = select.poll()
        poll.register(ctx.cancel.fileno(), select.POLLIN)
        poll.poll(ctx.instance["seconds"] * 1000)
        ctx.cancel.raise_if_set()

    def work(self, ctx: RolloutContext) -> None:
        """Be busy for the instance's `seconds`, and deaf meanwhile."""
        time.sleep(ctx.instance["seconds"])

    def fork(self, ctx: RolloutContext) -> None:
        """Be two from here on."""
        if pid := os.fork():
            note(ctx.instance, f"{ctx.job.job_id}.waits")
            os.waitpid(pid, 0)

    def use_a_child(self, ctx: RolloutContext) -> None:
        ctx.in_child(wait_for_the_end, 0, timeout=3600.0)

    def wait_then_use_a_child(self, ctx: RolloutContext) -> None:
        self.listen(ctx)
        self.use_a_child(ctx)

    def kill_the_nursery(self, ctx: RolloutContext) -> None:
        ctx.in_child(kill_the_nursery, 0, timeout=3600.0)
