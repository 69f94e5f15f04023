"""Handlers that benchmarks and tests load through `PRORL_HANDLERS`; they are no task kinds of the service."""

from __future__ import annotations

import http.client
import json
import select
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from prorl_celery.handlers.base import EvalContext, Handler, InitContext, RolloutContext, StageContext, require
from prorl_celery.llm.template import Message
from prorl_celery.llm.tokenizer import ChatTokenizer


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


QUESTION: list[Message] = [{"role": "user", "content": "Is the answer below right? Say yes or no. " * 60}]
ASK_SECONDS, ASK_TOKENS, ASK_WARM_UP = 30.0, 64, 10


class AskHandler(Handler):
    """Asks a model in eval so many times, and by a POST of the same prompt, in turns; says how long each took."""

    data_source = "ask"
    uses_sandbox = False

    def validate(self, instance: Mapping[str, Any]) -> None:
        for field, kind in (("count", int), ("url", str), ("model", str), ("tokenizer", str)):
            require(instance, field, kind)

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        return {}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        instance = ctx.instance
        tokenizer = ChatTokenizer(instance["tokenizer"])
        prompt = list(tokenizer.encode(tokenizer.render(QUESTION, None, add_generation_prompt=True)))
        connection = http.client.HTTPConnection(urlsplit(instance["url"]).netloc, timeout=ASK_SECONDS)
        body = json.dumps({"model": instance["model"], "prompt": prompt, "max_tokens": ASK_TOKENS, "temperature": 0.0})

        def ours() -> None:
            ctx.ask_model(QUESTION, model=instance["model"], max_tokens=ASK_TOKENS, timeout=ASK_SECONDS)

        def bare() -> None:
            connection.request("POST", "/v1/completions", body=body, headers={"Content-Type": "application/json"})
            json.loads(connection.getresponse().read())["choices"][0]["text"]

        took: dict[str, list[float]] = {"ours": [], "bare": []}
        try:
            for number in range(ASK_WARM_UP + instance["count"]):
                for name, ask in (("ours", ours), ("bare", bare)):
                    began = time.perf_counter()
                    ask()
                    if number >= ASK_WARM_UP:
                        took[name].append((time.perf_counter() - began) * 1000)
        finally:
            connection.close()
        return {"reward": 0.0, "took_ms": took}


def _wait(ctx: StageContext, field: str) -> dict[str, Any]:
    poll = select.poll()
    poll.register(ctx.cancel.fileno(), select.POLLIN)
    poll.poll(ctx.instance[field] * 1000)
    ctx.cancel.raise_if_set()
    return {}
