"""Check, look again, mend: the areas one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

import redis

from prorl_celery.app import Publisher, make_app
from prorl_celery.checking.batches import Batches
from prorl_celery.checking.broker import Broker
from prorl_celery.checking.finding import Area, Finding
from prorl_celery.checking.fleet import Fleet
from prorl_celery.checking.jobs import Jobs
from prorl_celery.checking.keyspace import Keyspace
from prorl_celery.checking.members import Members
from prorl_celery.checking.results import Told
from prorl_celery.checking.sandboxes import Sandboxes
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.pause import pause
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.keys import Keys
from prorl_celery.store.scripts import Scripts


class Publishing(Protocol):
    """Takes messages for the stages. Raises `StoreUnavailable`."""

    def publish_all(self, messages: list[Message]) -> None:
        """Publish them in order."""
        ...


MOST = 1000
"""Findings of one check: where there are more, those are mended first."""

SETTLE_SECONDS = 1.0
"""Between two looks: what one script began, and the next has not ended yet, takes less."""

LOOKS = 3
"""How often something is looked at again whose job is being changed, before it is left to the next check."""

ROUNDS = 5
"""How often a repair looks for what its last round brought to light."""


class Checker:
    """The areas of one store; `keeper` adds the sandboxes of this node. Raises `StoreUnavailable`, `SandboxError`."""

    def __init__(self, client: redis.Redis, settings: Settings, keeper: KeeperClient | None = None) -> None:
        keys, run = Keys(settings.key_prefix), Scripts(client, settings).run
        self._client, self._settings = client, settings
        self.store = JobStore(client, settings)
        self._keyspace = Keyspace(client, keys)
        others = self._keyspace.others
        self._areas: list[Area] = [
            Jobs(run, self._keyspace.jobs),
            Members(run, settings, others),
            Batches(run, others),
            Fleet(client, run, keys, others),
            Broker(client, run, settings, keys, others),
            Told(run),
        ]
        if keeper is not None:
            self._areas.append(Sandboxes(client, run, self.store, settings, keeper))
        self._every: list[Area] = [self._keyspace, *self._areas]
        self._settle = {area.name: area.settle_seconds for area in self._every}

    def check(self) -> list[Finding]:
        """What does not add up, seen twice; at most `MOST` findings."""
        found = self._look([self._keyspace])
        # All else stands on keys of the right type.
        if not any(finding.kind == "wrong-type" for finding in found):
            found += self._look(self._areas, MOST - len(found))
        return self._confirmed(found) if found else []

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Put right what is still wrong; messages to publish."""
        messages: list[Message] = []
        for area in self._every:
            if mine := [finding for finding in findings if finding.area == area.name]:
                messages += area.mend(mine)
        if any(finding.kind.startswith("overdue") for finding in findings):
            messages += self.store.sweep().messages
            BatchRegistry(self._client, self._settings, publisher_of(messages.extend)).tend()
        return messages

    def _look(self, areas: Sequence[Area], most: int = MOST) -> list[Finding]:
        found: list[Finding] = []
        for area in areas:
            found += islice(_of(area, area.look()), most - len(found))
        return list({finding.key: finding for finding in found}.values())

    def _confirmed(self, suspects: Sequence[Finding]) -> list[Finding]:
        """Those that are there a moment later too, and whose job was neither claimed nor queued in between."""
        confirmed: list[Finding] = []
        waited = 0.0
        longest = max(self._settle[finding.area] for finding in suspects)
        looks = 0
        while suspects and (looks < LOOKS or waited < longest):
            pause(SETTLE_SECONDS)
            looks, waited = looks + 1, waited + SETTLE_SECONDS
            now = self._again(suspects)
            left = []
            for before in suspects:
                after = now.get(before.key)
                if after is None:
                    continue
                if waited < self._settle[before.area] or (after.mark != before.mark and looks < LOOKS):
                    left.append(after)
                elif after.mark == before.mark:
                    confirmed.append(after)
            suspects = left
        return confirmed

    def _again(self, suspects: Sequence[Finding]) -> dict[tuple[object, ...], Finding]:
        now = {}
        for area in self._every:
            if mine := [finding for finding in suspects if finding.area == area.name]:
                now.update({finding.key: finding for finding in _of(area, area.again(mine))})
        return now


def _of(area: Area, findings: Iterable[Finding]) -> Iterator[Finding]:
    return (replace(finding, area=area.name) for finding in findings)


def check(client: redis.Redis, settings: Settings, keeper: KeeperClient | None = None) -> list[Finding]:
    """What does not add up in the store, and with a keeper on its node; nothing is written.

    Raises: `StoreUnavailable`, `SandboxError` when the keeper does not answer.
    """
    return Checker(client, settings, keeper).check()


def repair(
    findings: Sequence[Finding],
    client: redis.Redis,
    settings: Settings,
    keeper: KeeperClient | None = None,
    publisher: Publishing | None = None,
) -> list[Finding]:
    """Mend what was found, and what that brings to light; what is left. Safe on a live service: each thing is mended in
    the step that sees that it is still wrong.

    Raises: `StoreUnavailable`, `SandboxError` when the keeper does not answer or a sandbox will not end.
    """
    checker = Checker(client, settings, keeper)
    left = list(findings)
    for _ in range(ROUNDS):
        if not left:
            break
        if messages := checker.mend(left):
            publisher = publisher or Publisher(make_app(settings, connections=2))
            publisher.publish_all(messages)
        left = checker.check()
    return left
