"""`reasoning_gym/TASK`: a problem of the package `reasoning-gym`, scored by the package's scorer of that task.

Instance: `question`, `answer`, `metadata` and, where it was made with one, `config`, as `prorl_celery.data.gym` makes
them (`prorl submit --dataset reasoning_gym:TASK`). The reward is the scorer's, which for many tasks knows more than
right and wrong; `resolved` is a reward of 1.0. The package is an extra: `pip install 'prorl-celery[gym]'`, where jobs
are taken in and where they are scored.

By default the model replies once, without tools and sandbox, as these problems are meant; a job may name tools. The
answer is what the reply, or what `finish` was given, has between `<answer>` and `</answer>`; `finish` may be given it
bare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prorl_celery.data.gym import PREFIX, check_task
from prorl_celery.errors import BadInstance
from prorl_celery.grading.gym import tagged_answer, verdict
from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext, require
from prorl_celery.jobs.models import JobRequest

NO_SANDBOX_TOOLS = frozenset({"finish", "think"})

TASK = """{question}

Put your final answer, in the form that is asked for and nothing else, between <answer> and </answer>."""


class ReasoningGymHandler(Handler):
    """Scores by the package's own scorers."""

    data_source = f"{PREFIX}*"
    default_tools = ()

    def needs_sandbox(self, job: JobRequest) -> bool:
        return bool(set(job.agent.tools or self.default_tools) - NO_SANDBOX_TOOLS)

    def validate(self, instance: Mapping[str, Any]) -> None:
        task = _task(instance)
        check_task(task)
        if not require(instance, "question").strip():
            raise BadInstance("'question' is empty", field="question")
        require(instance, "answer", (str, type(None)))
        metadata = require(instance, "metadata", dict)
        made_by = metadata.get("source_dataset", task)
        if made_by != task:
            raise BadInstance(f"the instance is one of {made_by!r}, not of {task!r}", field="metadata.source_dataset")
        if "config" in instance:
            require(instance, "config", dict)

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        outcome = ctx.run_agent([{"role": "user", "content": TASK.format(question=ctx.instance["question"].rstrip())}])
        said = outcome["answer"] or ""
        answer = tagged_answer(said)
        if answer is None and outcome["finish_reason"] == "finish":
            answer = said.strip()
        return {"answer": answer}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return verdict(_task(ctx.instance), ctx.instance, ctx.rollout["answer"], ctx.in_child)


def _task(instance: Mapping[str, Any]) -> str:
    source = require(instance, "data_source")
    return str(source).removeprefix(PREFIX)
