"""init: wait for a place on this node, start the sandboxes, let the handler make them ready, hand on to rollout."""

from __future__ import annotations

from prorl_celery.jobs.messages import Message
from prorl_celery.sandbox.client import Admission
from tasks.contexts import InitStage
from tasks.sandboxes import StageSandboxes
from tasks.work import Work, call_handler

HAND_BACK_SECONDS = 30.0


def run(work: Work) -> Message:
    """Run init of a claim; return the message of the stage that follows (or of init anew, on another node)."""
    sandboxes = StageSandboxes(work, "init", {})
    if sandboxes.from_init:
        admission = _admitted(work)
        if admission is None:
            return work.end(lambda: work.process.store.hand_back(work.claim, waited_s=work.clock.waited_seconds))
        work.ending.callback(admission.release)
        work.clock.start()
        with work.act("sandbox start"):
            sandboxes.start(sandboxes.from_init, admission)
    work.clock.start()
    output = call_handler(work, work.handler.init, InitStage(work, sandboxes), "init")
    return sandboxes.commit({"handler": output}, "rollout")


def _admitted(work: Work) -> Admission | None:
    """A place among the node's sandboxes; None when another node has one and we have not.

    While every node is full the job waits here: giving it back would only send it to the end of the queue.
    """
    process = work.process
    while True:
        with work.act("waiting for a place on the node", waiting=True):
            admission = process.keeper.admit(work.job.job_id, cancel=work.signal, timeout=HAND_BACK_SECONDS)
        if admission is not None or process.nodes.other_has_room(process.settings.node):
            return admission
