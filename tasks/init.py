"""init: wait for a place on this node, make the sandbox, let the handler make it ready, hand on to rollout."""

from __future__ import annotations

from prorl_celery.jobs.messages import Message, node_queue
from prorl_celery.sandbox.client import Admission
from tasks.contexts import InitStage
from tasks.work import Work, call_handler

HAND_BACK_SECONDS = 30.0


def run(work: Work) -> Message:
    """Run init of a claim; return the message of the stage that follows (or of init anew, on another node)."""
    process, claim = work.process, work.claim
    if not work.handler.needs_sandbox(work.job):
        work.clock.start()
        output = call_handler(work.handler.init, InitStage(work, None), "init")
        return process.store.commit(
            claim, {"sandbox": None, "handler": output}, next_stage="rollout", queue="rollout", **work.times()
        )
    admission = _admitted(work)
    if admission is None:
        return process.store.hand_back(claim, waited_s=work.clock.waited_seconds)
    work.ending.callback(admission.release)
    work.clock.start()
    sandbox = process.keeper.start(
        work.sandbox_spec("rollout"),
        cancel=work.signal,
        timeout=work.clock.remaining_seconds,
        admission=admission,
    )
    committed = False
    work.let_go(sandbox, unless=lambda: committed)
    output = call_handler(work.handler.init, InitStage(work, sandbox), "init")
    message = process.store.commit(
        claim,
        {"sandbox": sandbox.handle.to_json(), "handler": output},
        next_stage="rollout",
        queue=node_queue("rollout", process.settings.node, sandbox.handle.boot),
        node=process.settings.node,
        sandbox=sandbox.handle.sandbox_id,
        **work.times(),
    )
    committed = True
    return message


def _admitted(work: Work) -> Admission | None:
    """A place among the node's sandboxes; None when another node has one and we have not.

    While every node is full the job waits here: giving it back would only send it to the end of the queue.
    """
    process = work.process
    while True:
        admission = process.keeper.admit(work.job.job_id, cancel=work.signal, timeout=HAND_BACK_SECONDS)
        if admission is not None or process.nodes.other_has_room(process.settings.node):
            return admission
