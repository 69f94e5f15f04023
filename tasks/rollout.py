"""rollout: take over the sandboxes that init started, let the model act, hand on to eval."""

from __future__ import annotations

from prorl_celery.jobs.messages import Message
from tasks.contexts import RolloutStage
from tasks.sandboxes import StageSandboxes
from tasks.work import Work, call_handler


def run(work: Work) -> Message:
    """Run rollout of a claim; return eval's message."""
    work.clock.start()
    sandboxes = StageSandboxes(work, "rollout", work.init["sandboxes"])
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
