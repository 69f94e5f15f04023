"""A job's life under random histories: whatever happens in whatever order, the store does what the model does.

Every message stays in flight for ever, so that each may be delivered at any time, again and again; every claim is kept,
so that what has lost its fence goes on trying to write.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from job_model import ModelJob, Outcome
from redis_fixtures import request

from prorl_celery.errors import FenceLost, NotFailed, NotFinished
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message, parse_queue
from prorl_celery.jobs.models import JobError, State
from prorl_celery.jobs.reading import ENDED
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Observation, Turn
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

STEPS = Counter(
    come_to_rollout=8, deliver=16, commit=6, turn=6, observe=4, acquire=2, sweep=10, process_dies=7, lease_lapses=4,
    hand_back=2, restart=1, fail=2, finish=3, create=1, cancel=1, cancel_is_neglected=1, retry=2, stall=2,
    node_is_silent=1, node_beats=2, scripts_are_forgotten=1,
)  # fmt: skip
"""How often each is tried. One rule draws them all, since of many rules each history would leave out half."""


@dataclass(frozen=True)
class Choice:
    """What a step is about: `pick` counts jobs, claims and messages from the latest."""

    pick: int = 0
    node: str = "n1"
    slot: int = 0
    one: bool = False
    other: bool = False


class Life(RuleBasedStateMachine):
    """A few jobs on two nodes with two processes each."""

    client: Any

    @initialize()
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

    @rule(
        name=st.sampled_from(sorted(STEPS.elements())),
        choice=st.builds(
            Choice,
            pick=st.integers(0, 10_000),
            node=st.sampled_from(list(BOOTS)),
            slot=st.integers(0, 1),
            one=st.booleans(),
            other=st.booleans(),
        ),
    )
    def step(self, name: str, choice: Choice) -> None:
        getattr(self, name)(choice)
        self.steps += 1
        self.check(thoroughly=self.steps % 8 == 0)

    # What trainers do

    def create(self, choice: Choice) -> None:
        if self._is_full():
            return
        most = 1 + choice.pick % 4
        job_id = f"j{next(self.numbers)}"
        made = self.store.create([request(job_id, max_attempts=most)])[0].message
        self.jobs[job_id] = ModelJob(job_id, most, self.alive, self.counts)
        assert made == self.jobs[job_id].message()
        self.messages.append(made)

    def cancel(self, choice: Choice) -> None:
        if choice.one and (job := self._a_job(choice)):
            assert self.store.cancel(job.job_id) == job.ask_to_cancel()

    def retry(self, choice: Choice) -> None:
        job = self._a_job(choice)
        if job is None:
            return
        if job.state in ("failed", "timed_out"):
            self._came(self.store.retry(job.job_id), job.retry())
        else:
            with pytest.raises(NotFailed):
                self.store.retry(job.job_id)

    # What workers do

    def deliver(self, choice: Choice) -> None:
        waiting = [job.message() for job in self.jobs.values() if job.state == "queued"]
        if (choice.one and choice.other) or not waiting:
            waiting = self.messages[-8:]
        if not waiting:
            return
        message = waiting[-1 - choice.pick % len(waiting)]
        home = parse_queue(message.queue)
        node = home.node if home else choice.node
        if f"{node}.{BOOTS[node]}" not in self.alive:
            return
        job, process = self.jobs[message.job_id], self.processes[node][choice.slot]
        op = f"op{next(self.numbers)}"
        claim = self.store.claim(message.stage, message.job_id, message.fence, node=node, process=process, op=op)
        if (job.state, job.stage, job.fence) != ("queued", message.stage, message.fence):
            assert claim is None
            return
        job.claim(node, process)
        assert claim is not None
        assert (claim.fence, claim.attempt, claim.losses, claim.queue) == (
            job.fence, job.attempt, job.losses, job.queue,
        )  # fmt: skip
        assert (claim.going_on, claim.suspect) == (job.going_on, job.losses >= 2)
        assert claim.sandboxes == (("box",) if job.sandboxes else ())
        assert (claim.init is None, claim.rollout is None) == (job.stage == "init", job.stage != "eval")
        self.claims.append(claim)

    def come_to_rollout(self, choice: Choice) -> None:
        """A job made and brought this far, which single steps seldom do."""
        if not self._is_full():
            latest = replace(choice, pick=2, other=False)
            for step in (self.create, self.deliver, self.commit, self.deliver, self.turn):
                step(latest)

    def turn(self, choice: Choice) -> None:
        claim, calls_follow = self._a_claim(choice), choice.one
        if claim is None or claim.stage != "rollout":
            return
        job = self.jobs[claim.job_id]
        turn = Turn(index=len(job.log), closed=not calls_follow)
        if not job.holds(claim.fence):
            with pytest.raises(FenceLost):
                self.store.append_turn(claim, turn)
            return
        job.turn(calls_follow)
        for _ in range(1 + choice.other):
            self.store.append_turn(claim, turn)

    def observe(self, choice: Choice) -> None:
        claim, closes = self._a_claim(choice), choice.one
        if claim is None or claim.stage != "rollout":
            return
        job = self.jobs[claim.job_id]
        last = len(job.log) - 1
        seen = Observation(
            index=last, call=job.log[-1].calls if job.log else 0, messages=[{"role": "tool"}], closes=closes
        )
        if not job.holds(claim.fence):
            with pytest.raises(FenceLost):
                self.store.append_observation(claim, seen)
        elif not job.log or not job.log[-1].open:
            if job.log:
                with pytest.raises(ValueError, match="after the turn's last call"):
                    self.store.append_observation(claim, seen)
        else:
            job.observation(closes)
            for _ in range(1 + choice.other):
                self.store.append_observation(claim, seen)

    def acquire(self, choice: Choice) -> None:
        claim = self._a_claim(choice)
        if claim is not None and self.jobs[claim.job_id].holds(claim.fence):
            assert self.backends.acquire(claim.job_id, claim.fence, model="m", mode=None)
            self.jobs[claim.job_id].held = True

    def stall(self, choice: Choice) -> None:
        if (claim := self._a_claim(choice)) is None:
            return
        job = self.jobs[claim.job_id]
        stall = {"act": "tool bash", "thread": "slot 1", "since_s": 301.5, "waiting": False}
        assert self.store.note_stall(claim.job_id, claim.fence, stall) == job.holds(claim.fence)
        job.stalled |= job.holds(claim.fence)

    def commit(self, choice: Choice) -> None:
        claim, sandboxes, bound = self._a_claim(choice), choice.one, choice.pick % 3 > 0
        if claim is None or claim.stage == "eval":
            return
        following = "rollout" if claim.stage == "init" else "eval"
        home = f"{claim.node}.{BOOTS[claim.node]}" if sandboxes else None
        self._step(
            claim,
            "commit",
            lambda: self.store.commit(
                claim, {}, next_stage=following, queue=f"{following}.{home}" if home else following, worked_s=1,
                node=claim.node if home else None, sandboxes=["box"] if sandboxes else [], bound=bound,
            ),
            lambda job: job.commit(following, home, sandboxes, bound),
        )  # fmt: skip

    def finish(self, choice: Choice) -> None:
        claim = self._a_claim(choice)
        states: tuple[State, ...] = ("completed", "failed", "timed_out")
        state = states[choice.pick % 3]
        if claim is None or (claim.stage != "eval" and choice.one):
            return
        self._step(
            claim,
            "finish",
            lambda: self.store.finish(claim, state=state, finish_reason="stop", worked_s=1),
            lambda job: job.finish(state),
        )

    def fail(self, choice: Choice) -> None:
        claim, retryable = self._a_claim(choice), choice.pick % 3 > 0
        if claim is None:
            return
        error = JobError(kind="sandbox", stage=claim.stage, message="broke", retryable=retryable)
        self._step(claim, "fail", lambda: self.store.fail(claim, error, worked_s=1), lambda job: job.fail(retryable))

    def hand_back(self, choice: Choice) -> None:
        claim, sandboxes_lost = self._a_claim(choice), choice.one and choice.other
        if claim is None:
            return
        self._step(
            claim,
            "hand_back",
            lambda: self.store.hand_back(claim, worked_s=1, waited_s=1, sandboxes_lost=sandboxes_lost),
            lambda job: job.hand_back(sandboxes_lost),
        )

    def restart(self, choice: Choice) -> None:
        claim, for_an_error = self._a_claim(choice), choice.pick % 4 > 0
        if claim is None:
            return
        error = JobError(kind="sandbox", stage=claim.stage, message="out of step", retryable=True)
        self._step(
            claim,
            "restart",
            lambda: self.store.restart(claim, error=error if for_an_error else None, worked_s=1),
            lambda job: job.restart(for_an_error),
        )

    # What goes wrong

    def process_dies(self, choice: Choice) -> None:
        node, slot = choice.node, choice.slot
        process = self.processes[node][slot]
        died = [c for c in self.claims if self._runs(c) and self.jobs[c.job_id].process == process]
        assert self.store.lapse(process) == len(died)
        if died:
            self.remembered[process] = max(self.remembered.get(process, 0), len(died))
        self.dead_leases += died
        self.processes[node][slot] = self._process(node)

    def lease_lapses(self, choice: Choice) -> None:
        claim = self._a_claim(choice)
        if claim is not None and self._runs(claim) and claim not in self.dead_leases:
            self.client.zadd("prorl:leases", {f"{claim.fence}|{claim.job_id}": 1})
            self.lapsed_leases.append(claim)

    def cancel_is_neglected(self, choice: Choice) -> None:
        job = self._a_job(choice)
        if job and job.cancel and job.state == "running":
            self.client.zadd("prorl:cancels", {job.job_id: 1})
            self.neglected.add(job.job_id)

    def node_beats(self, choice: Choice) -> None:
        self.client.zadd("prorl:nodes:seen", {f"{choice.node} {BOOTS[choice.node]}": FAR})
        self.alive.add(f"{choice.node}.{BOOTS[choice.node]}")

    def node_is_silent(self, choice: Choice) -> None:
        self.client.zrem("prorl:nodes:seen", f"{choice.node} {BOOTS[choice.node]}")
        self.alive.discard(f"{choice.node}.{BOOTS[choice.node]}")

    def scripts_are_forgotten(self, _: Choice) -> None:
        self.client.script_flush()

    def sweep(self, _: Choice) -> None:
        for job_id in self.jobs:  # all messages were published long ago
            self.client.hset(f"prorl:job:{job_id}", "published", 1)
        self.client.delete("prorl:swept")  # on a slow machine there may be gaps, which are no part of this
        running = Counter(self.jobs[c.job_id].process for c in self.claims if self._runs(c))
        expected: list[Message] = []
        ended: list[str] = []

        def note(job: ModelJob, outcome: Outcome) -> None:
            if isinstance(outcome, Message):
                expected.append(outcome)
            else:
                ended.append(job.job_id)

        waited = [job for job in self.jobs.values() if job.state == "queued"]
        for claim in (*self.dead_leases, *self.lapsed_leases):
            if self._runs(claim):
                job = self.jobs[claim.job_id]
                company = max(running[job.process], self.remembered.get(job.process, 0))
                self.remembered[job.process] = company
                note(job, job.lose(company))
        for job_id in self.neglected:
            job = self.jobs[job_id]
            if job.state == "running" and job.cancel:
                job.fence += 1
                note(job, job._end("cancelled", "sweep"))
        for job in waited:
            if job.home() is not None and job.home() not in self.alive:
                note(job, job.abandon())
        self.dead_leases, self.lapsed_leases, self.neglected = [], [], set()
        outcome = self.store.sweep()
        assert sorted(outcome.ended) == sorted(ended)
        assert set(expected) <= set(outcome.messages)
        for message in outcome.messages:  # those beyond what was expected are published once more
            assert message == self.jobs[message.job_id].message()
        self.messages += expected

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


def test_the_store_does_what_the_model_does_in_any_order(redis_client: redis.Redis) -> None:
    class OnRealRedis(Life):
        client = redis_client

    run_state_machine_as_test(
        OnRealRedis,
        settings=settings(
            max_examples=10,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 11))])
def test_the_store_does_what_the_model_does_for_long(redis_client: redis.Redis, seed: int) -> None:
    class OnRealRedis(Life):
        client = redis_client

    life, chance, names = OnRealRedis(), random.Random(seed), sorted(STEPS.elements())
    seen: Counter[str] = Counter()
    for _ in range(3):
        life.begin()
        for _ in range(200):
            choice = Choice(
                chance.randrange(10_000), chance.choice(list(BOOTS)), chance.randrange(2),
                chance.random() < 0.5, chance.random() < 0.5,
            )  # fmt: skip
            life.step(chance.choice(names), choice)
        seen.update(life.counts)
        seen.update(job.state for job in life.jobs.values())
        life.teardown()
    # A history that comes to none of these would show nothing.
    assert all(seen[name] for name in ("went_on", "started_over", "lost:rollout", "lost:eval", "completed")), seen
