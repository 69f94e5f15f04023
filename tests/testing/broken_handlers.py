"""Handlers that keep the contract but for one thing each, which the kit must find."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from prorl_celery.errors import BadInstance, SandboxError
from prorl_celery.handlers.base import Handler, SandboxRequest, require

LIVELY: list[subprocess.Popen[bytes]] = []


class Sound(Handler):
    """Counts lines of a file; nothing is wrong with it."""

    data_source = "count"
    default_tools = ("bash", "finish")

    def validate(self, instance: Mapping[str, Any]) -> None:
        require(instance, "text")
        if isinstance(require(instance, "lines", int), bool):
            raise BadInstance("'lines' must be a number", field="lines")

    def init(self, ctx: Any) -> Any:
        ctx.sandbox.files.write("/workspace/text", ctx.instance["text"].encode())
        return {"size": len(ctx.instance["text"])}

    def rollout(self, ctx: Any) -> Any:
        return ctx.run_agent([{"role": "user", "content": "Count the lines of /workspace/text."}])

    def eval(self, ctx: Any) -> Any:
        told = ctx.fresh_sandbox().shell.run("sleep 0.1; echo scored", timeout=10.0)
        assert told.output.strip() == "scored"
        right = ctx.rollout["answer"] == str(ctx.instance["lines"])
        return {"reward": float(right), "resolved": right}


class NeedsTheLines(Sound):
    """Takes the number for granted, and trips over what is none."""

    def validate(self, instance: Mapping[str, Any]) -> None:
        if len(instance["text"]) < instance["lines"]:
            raise BadInstance("too few lines", field="lines")


class RefusesWithoutAField(Sound):
    def validate(self, instance: Mapping[str, Any]) -> None:
        try:
            super().validate(instance)
        except BadInstance as error:
            raise BadInstance(str(error)) from error


class TakesAnything(Sound):
    def validate(self, instance: Mapping[str, Any]) -> None:
        pass


class AsksForOthers(Sound):
    calls: ClassVar[list[int]] = []

    def sandboxes(self, job: Any) -> Any:
        self.calls.append(1)
        return {f"further-{len(self.calls)}": SandboxRequest(stages=("eval",))}


class ScoresHalf(Sound):
    def eval(self, ctx: Any) -> Any:
        return {"reward": super().eval(ctx)["reward"] / 2}


class ScoresNan(Sound):
    def eval(self, ctx: Any) -> Any:
        return {"reward": float("nan")}


class ReturnsTuples(Sound):
    def init(self, ctx: Any) -> Any:
        super().init(ctx)
        return {"pair": (1, 2)}


class TellsTheAnswer(Sound):
    def rollout(self, ctx: Any) -> Any:
        task = f"Count the lines of /workspace/text. Hint: {ctx.instance['hint']}"
        return ctx.run_agent([{"role": "user", "content": task}])


class LeavesTheAnswer(Sound):
    def init(self, ctx: Any) -> Any:
        ctx.sandbox.files.write("/tmp/.solution", ctx.instance["hint"].encode())
        return super().init(ctx)


class KeepsOnItself(Sound):
    def rollout(self, ctx: Any) -> Any:
        self.outcome = super().rollout(ctx)
        return {}

    def eval(self, ctx: Any) -> Any:
        return {"reward": float(self.outcome["answer"] == str(ctx.instance["lines"]))}


class KeepsOnItsClass(Sound):
    outcome: ClassVar[dict[str, Any]] = {}

    def rollout(self, ctx: Any) -> Any:
        self.outcome.update(super().rollout(ctx))
        return {}

    def eval(self, ctx: Any) -> Any:
        return {"reward": float(self.outcome.get("answer") == str(ctx.instance["lines"]))}


class ScoresOnce(Sound):
    """Its eval uses up what it reads."""

    def sandbox_request(self, job: Any) -> SandboxRequest:
        return SandboxRequest(stages=("init", "rollout", "eval"))

    def eval(self, ctx: Any) -> Any:
        found = ctx.sandbox.shell.run("cat text && rm text", timeout=10.0).exit_code == 0
        return {"reward": float(found and ctx.rollout["answer"] == str(ctx.instance["lines"]))}


class SleepsInInit(Sound):
    def init(self, ctx: Any) -> Any:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            time.sleep(0.02)
        return super().init(ctx)


class SleepsInEval(Sound):
    def eval(self, ctx: Any) -> Any:
        time.sleep(1.5)
        return super().eval(ctx)


class CatchesAll(Sound):
    """Takes the loss of its sandbox for a wrong answer."""

    def eval(self, ctx: Any) -> Any:
        try:
            return super().eval(ctx)
        except SandboxError as error:
            return {"reward": 0.0, "why": str(error)}


class LeavesAProcess(Sound):
    def rollout(self, ctx: Any) -> Any:
        LIVELY.append(subprocess.Popen(["sleep", "60"]))
        return super().rollout(ctx)


class LeavesAThread(Sound):
    ended = threading.Event()

    def eval(self, ctx: Any) -> Any:
        threading.Thread(target=self.ended.wait, args=(60,), name="poller", daemon=True).start()
        return super().eval(ctx)


class CannotBeRepeated(Sound):
    """What its rollout does behind its agent does not bear being done again, and it does not say so."""

    def rollout(self, ctx: Any) -> Any:
        outcome = super().rollout(ctx)
        moved = ctx.sandbox.shell.run("mv text done", timeout=10.0)
        return {**outcome, "moved": moved.exit_code}


class Judged(Sound):
    """A judge says what the answer is worth."""

    def eval(self, ctx: Any) -> Any:
        said = ctx.ask_model(
            [{"role": "user", "content": f"Is {ctx.rollout['answer']!r} right?"}], max_tokens=100, timeout=20.0
        )
        return {"reward": float(said == "yes")}


class StartsOver(CannotBeRepeated):
    """Says so."""

    resumes = False
