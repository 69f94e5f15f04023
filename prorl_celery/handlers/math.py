"""`math`: a problem with an answer that can be checked: a number, an expression, a set, an interval, a word.

Instance: `problem` (text) and `answer` (text, LaTeX or not, boxed or not; or a number). `data.math_columns` makes them
of rows with other names.

Tools: `ipython`, with numpy, scipy and sympy (`PRORL_KERNEL_PACKAGES`; images bring their own), `think` and `finish`. A
job that says `"agent": {"tools": []}` gets one reply without any, and no sandbox: what a cheap baseline or a model that
was not trained to call tools wants.

The answer is read from what `finish` was given, else from the last text (`prorl_celery.grading.math.replies`), and
compared as `numbers`, `compare` and `verifier` beside it say: numbers exactly, all else by math-verify, in a child
process with limits. A key that cannot be parsed is refused before anything is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prorl_celery.errors import BadInstance
from prorl_celery.grading.math.check import check_key, key_of, verdict
from prorl_celery.handlers.base import EvalContext, Handler, InitContext, RolloutContext, require
from prorl_celery.jobs.models import JobRequest

LONGEST_PROBLEM = 200_000
NO_SANDBOX_TOOLS = frozenset({"finish", "think"})

TASK = """{problem}

Reason step by step{tools}. Put your final answer, and nothing else, within \\boxed{{}}{finish}."""


class MathHandler(Handler):
    """Scores the answer of the reply against the key."""

    data_source = "math"
    default_tools = ("ipython", "think", "finish")

    def needs_sandbox(self, job: JobRequest) -> bool:
        return bool(set(_tools(job)) - NO_SANDBOX_TOOLS)

    def validate(self, instance: Mapping[str, Any]) -> None:
        problem = require(instance, "problem")
        if not 0 < len(problem.strip()) <= LONGEST_PROBLEM:
            raise BadInstance(f"'problem' has 1 to {LONGEST_PROBLEM} characters", field="problem")
        require(instance, "answer", (str, int, float))
        key_of(instance["answer"])

    def init(self, ctx: InitContext) -> dict[str, Any]:
        check_key(ctx.instance["answer"], ctx.in_child)
        return {}

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        outcome = ctx.run_agent([{"role": "user", "content": prompt(ctx.instance["problem"], _tools(ctx.job))}])
        return {"answer": outcome["answer"]}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return verdict(ctx.instance["answer"], ctx.rollout["answer"], ctx.instance["problem"], ctx.in_child)


def prompt(problem: str, tools: tuple[str, ...]) -> str:
    """What the model is told. Without tools it is the problem alone: how to answer is then up to the data."""
    if not tools:
        return problem
    return TASK.format(
        problem=problem.rstrip(),
        tools="; compute with Python where that helps" if "ipython" in tools else "",
        finish=", as the answer of finish" if "finish" in tools else "",
    )


def _tools(job: JobRequest) -> tuple[str, ...]:
    return MathHandler.default_tools if job.agent.tools is None else tuple(job.agent.tools)
