"""What may happen in the world of `life_world.py`, to the store and to the model alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from job_model import ModelJob, Outcome
from life_world import BOOTS, FAR, Choice, World
from redis_fixtures import request

from prorl_celery.errors import FenceLost, NotFailed
from prorl_celery.jobs.messages import Message, parse_queue
from prorl_celery.jobs.models import JobError, State
from prorl_celery.jobs.turns import Observation, Turn


class Happenings(World):
    """Each method is one of them."""

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

    def release(self, choice: Choice) -> None:
        claim = self._a_claim(choice)
        if claim is not None:
            job = self.jobs[claim.job_id]
            assert self.backends.release(claim.job_id, claim.fence) == job.holds(claim.fence)
            job.held &= not job.holds(claim.fence)

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
