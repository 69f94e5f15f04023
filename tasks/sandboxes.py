"""The job's sandboxes as one of its stages has them: asked for by the handler, started, opened by name, handed on to
the later stages that may use them, ended after the last of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from prorl_celery.errors import HandlerError, SandboxError
from prorl_celery.handlers.base import MAIN, MOST_SANDBOXES, Handler, SandboxRequest
from prorl_celery.jobs.messages import Message, node_queue
from prorl_celery.jobs.models import STAGES, JobRequest, Stage
from prorl_celery.sandbox.base import Sandbox, SandboxHandle
from prorl_celery.sandbox.client import Admission, Starting
from prorl_celery.sandbox.session import LiveSandbox
from tasks.doubt import DoubtfulSandbox
from tasks.takeover import TakenOverSandbox, taking_over
from tasks.work import Handles, Work, asking_handler

log = logging.getLogger(__name__)

ATTACH_SECONDS = 10.0
AHEAD_SECONDS = 10.0
"""How long rollout's end waits for a sandbox that was started ahead for eval."""


def requests_of(handler: Handler, job: JobRequest) -> dict[str, SandboxRequest]:
    """All that the job asks for, by name. Raises `HandlerError` for what cannot be."""
    requests = {MAIN: handler.sandbox_request(job)} if handler.needs_sandbox(job) else {}
    further = dict(handler.sandboxes(job))
    if MAIN in further:
        raise HandlerError(f"{MAIN!r} is the name of the main sandbox; `sandbox_request` says what it is")
    requests.update(further)
    if len(requests) > MOST_SANDBOXES:
        raise HandlerError(f"{len(requests)} sandboxes are asked for; a job may have {MOST_SANDBOXES}")
    for name, request in requests.items():
        if not isinstance(name, str) or not isinstance(request, SandboxRequest):
            raise HandlerError(f"`sandboxes` gives a SandboxRequest for each name, not {name!r}: {request!r}")
    return requests


class StageSandboxes(Mapping[str, Sandbox]):
    """By name, those that this stage may use; each is opened when it is first asked for.

    `handles` are those that live already; `taken_over`: an earlier claim of the stage was at work in them. What this
    stage neither hands on nor leaves to another claim of its own ends with it.
    """

    def __init__(self, work: Work, stage: Stage, handles: Handles, *, taken_over: bool = False) -> None:
        self._work = work
        self._stage = stage
        self._taken_over = taken_over
        self._requests = asking_handler(lambda: requests_of(work.handler, work.job), stage)
        self._handles = {name: SandboxHandle.from_json(handle) for name, handle in handles.items()}
        self._open: dict[str, DoubtfulSandbox] = {}
        self._ahead: dict[str, Starting] = {}
        self._went_ahead = False
        self._fresh: list[DoubtfulSandbox] = []
        self._handed_on = False
        work.ending.callback(self._end)

    def __getitem__(self, name: str) -> Sandbox:
        request = self._requests.get(name)
        if request is None:
            raise HandlerError(f"the job has no sandbox {name!r}; it has {', '.join(self._requests) or 'none'}")
        if self._stage not in request.stages:
            raise HandlerError(f"the sandbox {name!r} is not for {self._stage}: its stages are {request.stages}")
        if name not in self._open:
            self._open[name] = DoubtfulSandbox(self._opened(name, request), self._work.signal)
        return self._open[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, request in self._requests.items() if self._stage in request.stages)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(name == mine for mine in self)

    @property
    def from_init(self) -> list[str]:
        """Those that init starts."""
        return [name for name, request in self._requests.items() if not request.for_eval_alone]

    def start(self, names: Iterable[str], admission: Admission) -> None:
        """Start these, all at once, all or none; the first takes the admission's place.

        Raises: as `KeeperClient.start`.
        """
        with ExitStack() as giving_up:
            starting: dict[str, Starting] = {}
            for name in names:
                starting[name] = giving_up.enter_context(self._begin(name, None if starting else admission))
            for name, start in starting.items():
                with _named(name):
                    sandbox = start.sandbox()
                self._handles[name] = sandbox.handle
                self._open[name] = DoubtfulSandbox(sandbox, self._work.signal)
            for start in starting.values():
                start.keep()

    def start_ahead(self) -> None:
        """Begin to start what eval alone uses, if eval may run here, and do not wait for it. It is no harm if that
        fails. Calls after the first do nothing; nor is anything started where a server scores in the handler's stead.
        """
        process = self._work.process
        if self._went_ahead or self._work.job.reward_url is not None:
            return
        wanted = [name for name, request in self._requests.items() if request.for_eval_alone]
        self._went_ahead = True
        if wanted and process.nodes.works_on("eval", process.settings.node, process.boot):
            for name in wanted:
                try:
                    self._ahead[name] = self._begin(name, None)
                except SandboxError as error:
                    log.warning("sandbox %r of %s could not be started ahead: %s", name, self._work.job.job_id, error)

    def await_ahead(self) -> None:
        """Wait for those that were started ahead; one that does not come is left to eval."""
        self.start_ahead()
        for name, starting in self._ahead.items():
            with starting:
                try:
                    sandbox = starting.sandbox(AHEAD_SECONDS)
                    starting.keep()
                except SandboxError as error:
                    log.warning("sandbox %r of %s was not ready ahead: %s", name, self._work.job.job_id, error)
                else:
                    sandbox.close()
                    self._handles[name] = sandbox.handle

    def fresh(self, request: SandboxRequest | None) -> Sandbox:
        """Start one more. Raises as `StageContext.fresh_sandbox`."""
        if sum(not sandbox.stopped for sandbox in self._fresh) >= MOST_SANDBOXES:
            raise HandlerError(f"{MOST_SANDBOXES} fresh sandboxes are there already; stop one before the next")
        work = self._work
        if request is None:
            main = asking_handler(lambda: work.handler.sandbox_request(work.job), self._stage)
            request = replace(main, kernel=False)
        sandbox = DoubtfulSandbox(self._started(request, "fresh"), work.signal)
        self._fresh.append(sandbox)
        return sandbox

    def forget_ahead(self) -> None:
        """Use nothing that was started ahead for eval."""
        self._handles = {name: handle for name, handle in self._handles.items() if self._bound_to(name)}

    def commit(self, output: dict[str, Any], next_stage: Stage) -> Message:
        """Store what this stage made and queue the next one: on this node where sandboxes live on for it.

        Raises: as `JobStore.commit`.
        """
        work = self._work
        living = {name: handle for name, handle in self._handles.items() if self._lives_on(name)}
        node = work.process.settings.node
        boot = next((handle.boot for handle in living.values()), None)
        message = work.end(
            lambda: work.process.store.commit(
                work.claim,
                {**output, "sandboxes": {name: handle.to_json() for name, handle in living.items()}},
                next_stage=next_stage,
                queue=next_stage if boot is None else node_queue(next_stage, node, boot),
                node=None if boot is None else node,
                sandboxes=[handle.sandbox_id for handle in living.values()],
                bound=any(self._bound_to(name) for name in living),
                **work.times(),
            )
        )
        self._handed_on = True
        return message

    def _opened(self, name: str, request: SandboxRequest) -> Sandbox:
        handle = self._handles.get(name)
        if handle is not None:
            try:
                return self._attached(handle)
            except SandboxError as error:
                if not request.for_eval_alone:
                    raise
                log.info("sandbox %r of %s was lost before eval: %s", name, self._work.job.job_id, error)
        if not request.for_eval_alone:
            raise HandlerError(f"init started no sandbox {name!r}: `sandboxes` must say the same in every stage")
        with _named(name):
            sandbox = self._started(request, "further")
        self._handles[name] = sandbox.handle
        return sandbox

    def _attached(self, handle: SandboxHandle) -> Sandbox:
        work = self._work
        timeout = min(ATTACH_SECONDS, work.clock.remaining_seconds)
        # What a claim did that Redis has forgotten is in the sandbox and in no turn log. An eval may be repeated there.
        known = work.published if self._stage == "rollout" else None
        with taking_over(work.signal, self._taken_over):
            sandbox = work.process.keeper.attach(
                handle,
                cancel=work.signal,
                timeout=timeout,
                fence=work.claim.fence,
                takes_over=self._taken_over,
                known=known,
            )
        return TakenOverSandbox(sandbox, work.signal) if self._taken_over else sandbox

    def _begin(self, name: str, admission: Admission | None) -> Starting:
        work = self._work
        spec = work.sandbox_spec(self._requests[name], "further" if admission is None else "rollout")
        timeout = work.clock.remaining_seconds
        return work.process.keeper.begin(spec, cancel=work.signal, timeout=timeout, admission=admission)

    def _started(self, request: SandboxRequest, purpose: str) -> LiveSandbox:
        work = self._work
        timeout = work.clock.remaining_seconds
        with work.act("sandbox start"):
            return work.process.keeper.start(work.sandbox_spec(request, purpose), cancel=work.signal, timeout=timeout)

    def _lives_on(self, name: str) -> bool:
        request = self._requests.get(name)
        return request is not None and STAGES.index(request.last_stage) > STAGES.index(self._stage)

    def _bound_to(self, name: str) -> bool:
        """Whether nothing else can stand for this one: what an earlier stage did in it counts."""
        request = self._requests.get(name)
        return request is not None and not request.for_eval_alone

    def _stays(self, name: str) -> bool:
        if self._handed_on:
            return self._lives_on(name)
        # A rollout that goes on, or a repeated eval, needs it again. Of a claim that was lost nobody here knows what
        # follows: then the janitor ends what the job's record does not name.
        return self._stage != "init" and self._work.follows in (self._stage, "unknown") and self._bound_to(name)

    def _end(self) -> None:
        """End what does not stay, close the rest. One that would not end is left to the janitor."""
        for starting in self._ahead.values():
            starting.close()
        for sandbox in (*self._open.values(), *self._fresh):
            sandbox.close()
        ends = [handle.sandbox_id for name, handle in self._handles.items() if not self._stays(name)]
        ends += [sandbox.handle.sandbox_id for sandbox in self._fresh if not sandbox.stopped]
        for sandbox_id in ends:
            try:
                self._work.process.keeper.stop(sandbox_id)
            except SandboxError as error:
                log.warning("sandbox %s of %s: %s", sandbox_id, self._work.job.job_id, error)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say in an error which of the job's sandboxes it is about, where it has several."""
    try:
        yield
    except SandboxError as error:
        if name == MAIN:
            raise
        raise type(error)(f"the sandbox {name!r}: {error}") from error
