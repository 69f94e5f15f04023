"""This node's sandboxes, as its keeper lists them, against the jobs that live here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prorl_celery.checking.finding import Finding
from prorl_celery.jobs.messages import Message, parse_queue
from prorl_celery.jobs.replies import message_of
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.janitor.strays import Janitor
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings
from prorl_celery.store.clients import reaching_redis

SETTLE_SECONDS = 15.0
"""How long a sandbox may outlive its job before that is a finding: its stage, else the janitor, ends it sooner."""


class Sandboxes:
    """Looks at one node. Raises `SandboxError` beside `StoreUnavailable`."""

    name = "sandboxes"
    settle_seconds = SETTLE_SECONDS

    def __init__(
        self, client: Any, run: Callable[..., Any], store: JobStore, settings: Settings, keeper: KeeperClient
    ) -> None:
        self._client = client
        self._run = run
        self._store = store
        self._node = settings.node
        self._keeper = keeper
        self._janitor = Janitor(store, keeper, settings)

    def look(self) -> Iterator[Finding]:
        """All sandboxes, and all that jobs name."""
        for stray in self._janitor.find():
            name, owner = stray["sandbox_id"], stray["job_id"]
            yield Finding("stray-sandbox", name, f"is of job {owner}, which is not live here", place=(name,))
        yield from self._missing()

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """All of it: it is little."""
        return self.look()

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """End what is nobody's, start over what has lost its sandbox."""
        wanted, messages = {(finding.kind, finding.subject) for finding in findings}, []
        for finding in self.look():
            if (finding.kind, finding.subject) not in wanted:
                continue
            if finding.kind == "stray-sandbox":
                self._keeper.stop(finding.subject)
            else:
                reply = self._run("check_sandbox", "mend", finding.subject, finding.mark)
                messages += [message_of(parts) for parts in reply[1]]
        return messages

    def _missing(self) -> Iterator[Finding]:
        """Jobs that wait here for a stage in sandboxes that this keeper does not have. Those that run are left to their
        stage: it may have ended its sandbox itself, and not said so yet.
        """
        boot = self._keeper.status()["boot"]
        named = {job: names for job, (_, names) in self._store.live_on(self._node).items() if names}
        if not named:
            return
        # The jobs first: a sandbox that is missing from a later list is gone.
        there = {one["sandbox_id"] for one in self._keeper.list()}
        for job, names in sorted(named.items()):
            lost = sorted(names - there)
            if not lost:
                continue
            with reaching_redis():
                key = self._store.keys("job", job)
                state, queue, fence, bound = self._client.hmget(key, "state", "queue", "fence", "bound")
            place = parse_queue((queue or b"").decode())
            if state == b"queued" and bound == b"1" and place and place.boot == boot:
                text = f"waits for a stage in sandbox {', '.join(lost)}, which is gone"
                yield Finding("no-sandbox", job, text, fence.decode())
