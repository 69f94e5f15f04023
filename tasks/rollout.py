"""rollout: take over the sandbox that init made, let the model act, hand on to eval."""

from __future__ import annotations

from prorl_celery.jobs.messages import Message, node_queue
from prorl_celery.sandbox.base import Sandbox, SandboxHandle
from tasks.contexts import RolloutStage
from tasks.work import Work, call_handler


def run(work: Work) -> Message:
    """Run rollout of a claim; return eval's message."""
    work.clock.start()
    keep = work.handler.eval_uses_rollout_sandbox
    committed = False
    sandbox = attach(work)
    if sandbox is not None:
        work.let_go(sandbox, unless=lambda: committed and keep)
    ctx = RolloutStage(work, sandbox, work.init["handler"])
    output = call_handler(work.handler.rollout, ctx, "rollout")
    artifacts = output.get("artifacts") if isinstance(output, dict) else None
    message = work.process.store.commit(
        work.claim,
        {
            "handler": output,
            "finish_reason": ctx.finish_reason,
            "artifacts": artifacts if isinstance(artifacts, dict) else {},
        },
        next_stage="eval",
        queue=node_queue("eval", sandbox.handle.node, sandbox.handle.boot) if sandbox and keep else "eval",
        node=sandbox.handle.node if sandbox and keep else None,
        sandbox=sandbox.handle.sandbox_id if sandbox and keep else None,
        **work.times(),
    )
    committed = True
    return message


def attach(work: Work) -> Sandbox | None:
    """The sandbox that init made, or None where it made none."""
    handle = work.init["sandbox"]
    if handle is None:
        return None
    return work.process.keeper.attach(
        SandboxHandle.from_json(handle), cancel=work.signal, timeout=min(10.0, work.clock.remaining_seconds)
    )
