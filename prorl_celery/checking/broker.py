"""The broker's side: a job that waits has a message there, and of queues that nobody reads nothing is left.

A message is in the list of its queue and level, or was handed to a worker and not acknowledged yet (`unacked`). One
that is missing is published again by the sweep; it is a finding when the sweep should have done so long ago.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prorl_celery.checking.finding import Finding, shown
from prorl_celery.jobs.messages import Message, broker_list, parse_queue
from prorl_celery.jobs.reading import LEVELS
from prorl_celery.jobs.upkeep import BROKER_BINDINGS, BROKER_SEPARATOR
from prorl_celery.settings import Settings
from prorl_celery.store.clients import reaching_redis
from prorl_celery.store.keys import Keys

PAGE = 500

UNACKED = "unacked"
"""Where kombu keeps what was handed out."""

_TASK_ID = re.compile(rb'"id": ?"([A-Za-z0-9._:-]{1,128})/(\d+)"')
"""The id that `Publisher` gives a task, as it stands in a message."""


class Broker:
    """Compares kombu's lists with the queues of the keyspace."""

    name = "broker"
    settle_seconds = 0.0

    def __init__(self, client: Any, run: Callable[..., Any], settings: Settings, keys: Keys, known: set[str]) -> None:
        self._client = client
        self._run = run
        self._keys = keys
        self._known = known
        # The rule needs two snapshots of a lane, each so far apart, and a sweep to see them.
        self._patience_ms = round(1000 * (3 * settings.republish_after_seconds + 10 * settings.sweep_seconds))

    def look(self) -> Iterator[Finding]:
        """All of it."""
        nodes = self._living()
        if nodes:
            yield from self._lost()
        yield from self._unread(nodes)

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """All of it: a message moves between the lists while they are read, and would be missed by a look at one."""
        return self.look()

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Delete what nobody reads; the messages of the others, to be published."""
        wanted, messages = {(finding.kind, finding.subject) for finding in findings}, []
        with reaching_redis():
            for finding in self.look():
                if (finding.kind, finding.subject) not in wanted:
                    continue
                if finding.kind == "stray-list":
                    self._client.unlink(finding.place[0])
                elif finding.kind == "stray-binding":
                    self._client.srem(BROKER_BINDINGS, finding.place[0])
                else:
                    stage, queue, prio = self._client.hmget(
                        self._keys("job", finding.subject), "stage", "queue", "prio"
                    )
                    messages.append(
                        Message(stage.decode(), queue.decode(), finding.subject, int(finding.mark), int(prio))
                    )
        return messages

    def _living(self) -> set[str]:
        """The nodes that live, "<node> <boot>"."""
        with reaching_redis():
            seconds, microseconds = self._client.time()
            now = int(seconds) * 1000 + int(microseconds) // 1000
            nodes = self._client.zrange(self._keys("nodes", "seen"), f"({now}", "+inf", byscore=True)
        return {node.decode() for node in nodes}

    def _lost(self) -> Iterator[Finding]:
        waiting = {job: lane for lane in self._lanes() for job in self._waiting(lane)}
        if not waiting:
            return
        there = set(self._handed_out())
        for lane in sorted(set(waiting.values())):
            level, queue = lane.split(":", 1)
            there |= set(self._listed(broker_list(queue, int(level))))
        for (job, fence), lane in sorted(waiting.items()):
            if (job, fence) not in there:
                text = f"waits in {lane.split(':', 1)[1]}, and the broker has no message of it"
                yield Finding("message-lost", shown(job), text, fence)

    def _lanes(self) -> list[str]:
        return [name.removeprefix("queued:") for name in sorted(self._known) if name.startswith("queued:")]

    def _unread(self, nodes: set[str]) -> Iterator[Finding]:
        with reaching_redis():
            queues = {queue.decode() for queue in self._client.smembers(self._keys("queues"))}
            bindings = list(self._client.sscan_iter(BROKER_BINDINGS, count=PAGE))
        for binding in sorted(bindings):
            queue = binding.decode(errors="surrogateescape").split(BROKER_SEPARATOR)[-1]
            place = parse_queue(queue)
            if place is None or f"{place.node} {place.boot}" in nodes or queue in queues:
                continue
            yield Finding("stray-binding", shown(queue), "is bound, and its node is gone", place=(binding.decode(),))
            for each in LEVELS:
                name = broker_list(queue, each)
                with reaching_redis():
                    if self._client.exists(name):
                        yield Finding("stray-list", shown(name), "its node is gone", place=(name,))

    def _waiting(self, lane: str) -> Iterator[tuple[str, str]]:
        """The jobs of a lane that have waited for long, and their fences."""
        cursor = b"0"
        while True:
            cursor, flat = self._run("check_waiting", "look", lane, cursor, PAGE, self._patience_ms)
            words = flat.decode(errors="surrogateescape").split()
            yield from zip(words[::2], words[1::2], strict=True)
            if cursor == b"0":
                return

    def _listed(self, name: str) -> Iterator[tuple[str, str]]:
        """The jobs and fences of the messages of a list. From the end that grows: what leaves at the other end while
        this reads moves nothing past it.
        """
        at = 0
        while True:
            with reaching_redis():
                page = self._client.lrange(name, at, at + PAGE - 1)
            for message in page:
                yield from _jobs_of(message)
            if len(page) < PAGE:
                return
            at += PAGE

    def _handed_out(self) -> Iterator[tuple[str, str]]:
        cursor = 0
        while True:
            with reaching_redis():
                cursor, page = self._client.hscan(UNACKED, cursor, count=PAGE)
            for message in page.values():
                yield from _jobs_of(message)
            if cursor == 0:
                return


def _jobs_of(message: bytes) -> list[tuple[str, str]]:
    return [(job.decode(), fence.decode()) for job, fence in _TASK_ID.findall(message)]
