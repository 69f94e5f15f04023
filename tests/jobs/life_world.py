"""The world of `test_job_life.py`: a store and a model of each of its jobs, and whether they agree."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from job_model import ModelJob, Outcome

from prorl_celery.errors import FenceLost, NotFinished
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.reading import ENDED
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings

BOOTS = {"n1": "b1", "n2": "b2"}
FAR = 1 << 52
CONSTANT = {"counts", "seq", "swept", "results", "results:trimmed", "queues", "backends", "heap:m", "nodes:seen"}
"""Keys that are there whether or not any job is."""

SORTED, SETS = ("index", "queued", "leases", "cancels", "stalled", "expiry", "dead"), ("on", "assigned")
"""The first words of the keys that list jobs."""

MOST_LIVE, MOST_JOBS = 5, 20
"""A few at once, so that each comes far."""


@dataclass(frozen=True)
class Choice:
    """What a step is about: `pick` counts jobs, claims and messages from the latest."""

    pick: int = 0
    node: str = "n1"
    slot: int = 0
    one: bool = False
    other: bool = False


class World:
    """A few jobs on two nodes with two processes each."""

    client: Any

    def begin(self) -> None:
        self.client.flushall()
        settings_ = Settings(node="n1")
        self.store = JobStore(self.client, settings_)
        self.backends = BackendRegistry(self.client, settings_)
        self.backends.put(Backend(url="http://a", model="m"))
        self.numbers = itertools.count()
        self.steps = 0
        self.jobs: dict[str, ModelJob] = {}
        self.alive: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.messages: list[Message] = []
        self.claims: list[Claim] = []
        self.replies: dict[tuple[str, str], Message | None] = {}
        """What a step of a claim was answered, by job and "<step>:<fence>"."""
        self.processes = {node: [self._process(node) for _ in range(2)] for node in BOOTS}
        self.remembered: dict[str, int] = {}
        """How many jobs ran in a process that was lost."""
        self.dead_leases: list[Claim] = []
        self.lapsed_leases: list[Claim] = []
        self.neglected: set[str] = set()
        """Jobs whose workers have done nothing about a cancel for long."""
        for node in BOOTS:
            self.node_beats(Choice(node=node))

    # What must hold

    def check(self, *, thoroughly: bool) -> None:
        self.the_store_says_what_the_model_says()
        self.every_job_is_in_the_indexes_that_fit_and_in_no_other()
        if thoroughly:
            self.logs_are_those_of_this_attempt()
            self.what_has_ended_has_one_result_and_what_has_not_has_none()

    def the_store_says_what_the_model_says(self) -> None:
        statuses = {status.job_id: status for status in self.store.statuses(list(self.jobs))}
        for job in self.jobs.values():
            status = statuses[job.job_id]
            assert (status.state, status.stage, status.attempt) == (job.state, job.stage, job.attempt)
            assert status.turns == len(job.log)
            assert (status.stalled is not None) == job.stalled
            assert status.cancel_requested == (job.cancel and not job.ended)
        assert {name: n for name, n in self.store.counters().items() if ":" in name or "_" in name} == {
            name: n for name, n in self.counts.items() if n
        }

    def logs_are_those_of_this_attempt(self) -> None:
        for job in self.jobs.values():
            log = self.store.turns(job.job_id)
            assert [turn.index for turn in log] == list(range(len(job.log)))
            assert [(not turn.closed, len(turn.messages)) for turn in log] == [(t.open, t.calls) for t in job.log]

    def every_job_is_in_the_indexes_that_fit_and_in_no_other(self) -> None:
        jobs = self.jobs.values()
        expected: dict[str, set[str]] = {}

        def add(key: str, member: str) -> None:
            expected.setdefault(key, set()).add(member)

        for job in jobs:
            add(f"index:{job.state}" if job.ended else f"index:{job.state}:{job.stage}", job.job_id)
            if job.state == "queued":
                add(f"queued:3:{job.queue}", job.job_id)
            if job.state == "running":
                add("leases", f"{job.fence}|{job.job_id}")
                if job.cancel:
                    add("cancels", job.job_id)
            if job.on:
                add(f"on:{job.on}", job.job_id)
            if job.held:
                add("assigned:http://a", job.job_id)
            if job.stalled:
                add("stalled", job.job_id)
            if job.ended:
                add("expiry", job.job_id)
            if job.dead:
                add("dead", job.job_id)
        found: dict[str, set[str]] = {}
        keys = [raw.decode().removeprefix("prorl:") for raw in self.client.keys("*")]
        assert all(self.store.keys.known(f"prorl:{key}") for key in keys)
        read = self.client.pipeline(transaction=False)
        names = [key for key in keys if key.split(":")[0] in (*SORTED, *SETS)]
        for name in names:
            if name.split(":")[0] in SETS:
                read.smembers(f"prorl:{name}")
            else:
                read.zrange(f"prorl:{name}", 0, -1)
        for name, members in zip(names, read.execute(), strict=True):
            found[name] = {member.decode() for member in members}
        assert found == expected

    def what_has_ended_has_one_result_and_what_has_not_has_none(self) -> None:
        entries = [fields[b"job"].decode() for _, fields in self.client.xrange("prorl:results")]
        assert sorted(entries) == sorted(job.job_id for job in self.jobs.values() if job.ended)
        for job in self.jobs.values():
            assert job.ends == job.retries + job.ended
            if job.ended:
                assert self.store.result(job.job_id).state == job.state
            else:
                with pytest.raises(NotFinished):
                    self.store.result(job.job_id)

    def teardown(self) -> None:
        """When all have ended and expired, nothing is left but tombstones."""
        if not hasattr(self, "jobs"):
            return
        self.check(thoroughly=True)
        for job in self.jobs.values():
            if self.store.cancel(job.job_id) == "requested":
                self.client.zadd("prorl:cancels", {job.job_id: 1})
        self.store.sweep()
        counts = self.store.counts()
        assert sum(counts[state] for state in ENDED) == len(self.jobs)
        for key in self.client.keys("prorl:*"):
            if key.split(b":")[1] in (b"data", b"turns", b"events", b"job", b"lost"):
                assert self.client.pttl(key) > 0, key
        if self.jobs:
            self.client.zadd("prorl:expiry", dict.fromkeys(self.jobs, 1))
        for stream_id, _ in self.client.xrange("prorl:results"):
            self.client.xdel("prorl:results", stream_id)
        self.store.sweep()
        left = {key.decode().removeprefix("prorl:") for key in self.client.keys("*")}
        left = {key for key in left if key.split(":")[0] not in ("job", "lost")}
        assert left <= CONSTANT, left - CONSTANT

    # Tools

    def _step(
        self, claim: Claim, step: str, do: Callable[[], Message | None], model: Callable[[ModelJob], Outcome]
    ) -> None:
        """A step that ends a claim: refused when the claim is gone, answered as before when it has been done."""
        job, name = self.jobs[claim.job_id], f"{step}:{claim.fence}"
        if job.last == name:
            assert do() == self.replies[job.job_id, name]
        elif not job.holds(claim.fence):
            with pytest.raises(FenceLost):
                do()
        else:
            outcome = model(job)
            if outcome == "ended" and step in ("commit", "hand_back", "restart") and job.state == "cancelled":
                with pytest.raises(FenceLost, match="was cancelled before"):
                    do()
                return
            reply = do()
            self.replies[job.job_id, name] = reply
            if isinstance(outcome, Message):
                self._came(reply, outcome)
            else:
                assert reply is None

    def _came(self, message: Message | None, expected: Outcome) -> None:
        assert message == expected
        assert message is not None
        self.messages.append(message)

    def _is_full(self) -> bool:
        return len(self.jobs) == MOST_JOBS or sum(not job.ended for job in self.jobs.values()) == MOST_LIVE

    def _a_job(self, choice: Choice) -> ModelJob | None:
        return list(self.jobs.values())[-1 - choice.pick % len(self.jobs)] if self.jobs else None

    def _a_claim(self, choice: Choice) -> Claim | None:
        """One that holds its job; each eighth time any of the latest."""
        claims = [claim for claim in self.claims if self._runs(claim)] if choice.pick % 8 else self.claims[-8:]
        return claims[-1 - choice.pick % len(claims)] if claims else None

    def _runs(self, claim: Claim) -> bool:
        return self.jobs[claim.job_id].holds(claim.fence)

    def _process(self, node: str) -> str:
        return f"{node} {BOOTS[node]} rollout-0 {next(self.numbers):08x}"
