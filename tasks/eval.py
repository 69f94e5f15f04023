"""eval: score what rollout left behind, and finish the job."""

from __future__ import annotations

import math
from typing import Any

from prorl_celery.errors import EvalError
from tasks.contexts import EvalStage
from tasks.sandboxes import StageSandboxes
from tasks.work import Work, call_handler


def run(work: Work) -> None:
    """Run eval of a claim and finish its job."""
    work.clock.start()
    claim = work.claim
    repeated = work.published != work.rollout["fence"]
    sandboxes = StageSandboxes(work, "eval", work.rollout["sandboxes"], taken_over=repeated)
    if repeated:
        # An eval before this one may have used what was started ahead for eval.
        sandboxes.forget_ahead()
    ctx = EvalStage(work, sandboxes, work.init["handler"], work.rollout["handler"])
    verdict = call_handler(work, work.handler.eval, ctx, "eval")
    reward, resolved = _scored(verdict)
    work.end(
        lambda: work.process.store.finish(
            claim,
            state="completed",
            finish_reason=work.rollout["finish_reason"],
            reward=reward,
            resolved=resolved,
            artifacts=work.rollout["artifacts"],
            eval=verdict,
            **work.times(),
        )
    )


def _scored(verdict: Any) -> tuple[float, bool | None]:
    """Reward and resolved of what eval returned. Raises `EvalError` when there is no reward in it."""
    if not isinstance(verdict, dict):
        raise EvalError(f"eval must return an object with a reward, not {type(verdict).__name__}")
    reward = verdict.get("reward")
    try:
        number = math.nan if isinstance(reward, bool) or not isinstance(reward, int | float) else float(reward)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise EvalError(f"eval's reward must be a finite number, not {reward!r}")
    resolved = verdict.get("resolved")
    if resolved is not None and not isinstance(resolved, bool):
        raise EvalError(f"eval's resolved must be true, false or null, not {resolved!r}")
    return number, resolved
