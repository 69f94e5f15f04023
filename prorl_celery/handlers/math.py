"""`math`: a problem with a number for an answer; the last number of the final reply is scored.

Instance: `problem` (text), `answer` (number or text with one). Without tools it is one turn and needs no sandbox; with
`bash` among the job's tools the model may compute first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from prorl_celery.errors import BadInstance
from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext, require
from prorl_celery.jobs.models import JobRequest

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+|[eE][-+]?\d{1,3}(?!\d))?")

NO_SANDBOX_TOOLS = frozenset({"finish", "think"})


class MathHandler(Handler):
    """Scores the last number of the reply against the answer."""

    data_source = "math"
    uses_sandbox = False
    default_tools = ()

    def needs_sandbox(self, job: JobRequest) -> bool:
        return bool(set(job.agent.tools or ()) - NO_SANDBOX_TOOLS)

    def validate(self, instance: Mapping[str, Any]) -> None:
        require(instance, "problem")
        answer = require(instance, "answer", (str, int, float))
        if last_number(str(answer)) is None:
            raise BadInstance(f"'answer' holds no number: {answer!r}", field="answer")

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        outcome = ctx.run_agent([{"role": "user", "content": ctx.instance["problem"]}])
        return {"answer": outcome["answer"]}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        expected = last_number(str(ctx.instance["answer"]))
        got = last_number(ctx.rollout["answer"] or "")
        resolved = got is not None and got == expected
        return {"reward": float(resolved), "resolved": resolved, "answer": None if got is None else str(got)}


def last_number(text: str) -> Fraction | None:
    """The last number in the text, exactly; None where there is none. `1,000`, `-3.5`, `3/4`, `1e-05` are numbers."""
    matches = NUMBER.findall(text)
    if not matches:
        return None
    try:
        return Fraction(matches[-1].replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None
