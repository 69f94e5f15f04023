"""rollout: take over the sandboxes that init started, let the model act, hand on to eval.

One that another process began, and lost or gave back, goes on after what is in the turn log (`tasks/replay.py`), in the
same sandboxes (`tasks/takeover.py`).
"""

from __future__ import annotations

from prorl_celery.jobs.messages import Message
from tasks.contexts import RolloutStage
from tasks.sandboxes import StageSandboxes
from tasks.work import Work, call_handler


def run(work: Work) -> Message | None:
    """Run rollout of a claim; return eval's message (init's where it must start over)."""
    work.clock.start()
    going_on = work.claim.going_on
    sandboxes = StageSandboxes(work, "rollout", work.init["sandboxes"], taken_over=going_on)
    if going_on and not work.handler.resumes:
        return work.end(lambda: work.process.store.restart(work.claim, **work.times()))
    ctx = RolloutStage(work, sandboxes, work.init["handler"])
    output = call_handler(work, work.handler.rollout, ctx, "rollout")
    artifacts = output.get("artifacts") if isinstance(output, dict) else None
    sandboxes.await_ahead()
    return sandboxes.commit(
        {
            "fence": work.claim.fence,
            "handler": output,
            "finish_reason": ctx.finish_reason,
            "artifacts": artifacts if isinstance(artifacts, dict) else {},
        },
        "eval",
    )
