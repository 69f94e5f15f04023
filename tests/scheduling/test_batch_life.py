"""Batches under random histories: whatever jobs come to, in whatever order, the scripts do what the model does.

Messages may be lost between a script and the broker, delivered twice, or late; jobs finish, fail, are cancelled by
somebody, or are told again what they have been told.
"""

from __future__ import annotations

import itertools
from typing import Any

import redis
from batch_model import ModelBatch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from prorl_celery.errors import FenceLost
from prorl_celery.jobs.batch_models import BatchRequest, MorePrompts
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import TERMINAL
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.keys import Keys

SOME = st.integers(0, 10_000)
REWARDS = st.sampled_from([0.0, 0.0, 1.0, 0.5])


def prompts(first: int, count: int) -> list[dict[str, Any]]:
    instances = ({"data_source": "math", "problem": str(n), "answer": "1"} for n in range(first, first + count))
    return [{"prompt_id": f"p{first + at}", "instance": instance} for at, instance in enumerate(instances)]


class BatchLife(RuleBasedStateMachine):
    """One batch, and workers that take its messages in any order."""

    client: Any

    @initialize(
        wanted=st.integers(1, 4),
        samples=st.integers(2, 4),
        groups_at_once=st.integers(1, 5),
        lenient=st.booleans(),
        policy=st.sampled_from(["retry", "drop_group", "keep_group"]),
        filtered=st.booleans(),
        stops=st.booleans(),
        decided=st.booleans(),
        first=st.integers(0, 8),
        more=st.booleans(),
    )
    def begin(
        self, wanted: int, samples: int, groups_at_once: int, lenient: bool, policy: str, filtered: bool, stops: bool,
        decided: bool, first: int, more: bool,
    ) -> None:  # fmt: skip
        self.client.flushall()
        own = Settings(node="n1")
        self.messages: list[Message] = []
        self.lose_next = False
        self.store = JobStore(self.client, own, publish=self._publish)
        self.batches = BatchRegistry(self.client, own, publisher_of(self._publish))
        self.keys = Keys(own.key_prefix)
        self.claims: list[Claim] = []
        self.numbers = itertools.count()
        self.model = ModelBatch(
            "b",
            wanted,
            samples,
            room=groups_at_once * samples + 1,
            min_samples=samples - 1 if lenient else samples,
            policy=policy,
            filtered=filtered,
            stop_after=2 if stops and filtered else 0,
            decided=decided,
        )
        model = self.model
        self.request = BatchRequest.model_validate(
            {
                "batch_id": "b",
                "target_groups": wanted,
                "samples_per_group": samples,
                "max_inflight_jobs": model.room,
                "min_samples": model.min_samples,
                "failed_samples": policy,
                "informative": {} if filtered else None,
                "stop_uniform_after": model.stop_after or None,
                "stop_group_when_decided": decided,
                "prompts": prompts(0, first),
                "more_prompts": more,
            }
        )
        assert self.batches.create(self.request)
        model.add(first, more=more)

    def _publish(self, messages: Any) -> None:
        if not self.lose_next:
            self.messages += messages

    @rule(which=SOME, again=st.booleans())
    def deliver(self, which: int, again: bool) -> None:
        """A worker takes a message; it may be one that was delivered before."""
        if not self.messages:
            return
        message = self.messages[which % len(self.messages)]
        if not again:
            self.messages.remove(message)
        op = f"{next(self.numbers):08x}"
        claim = self.store.claim("init", message.job_id, message.fence, node="n", process="n p", op=op)
        if claim is not None:
            assert claim.request.job_id == message.job_id
            self.claims.append(claim)
        elif message.job_id in self.model.revoked - {running.job_id for running in self.claims}:
            self.model.ends(message.job_id, None, cancelled=True)

    @rule(which=SOME, reward=REWARDS, twice=st.booleans())
    def finish(self, which: int, reward: float, twice: bool) -> None:
        claim = self._take(which)
        if claim is None:
            return
        for _ in range(1 + twice):  # an answer that was lost is asked for again
            self.store.finish(claim, state="completed", finish_reason="stop", reward=reward, worked_s=1.0)
        self.model.ends(claim.job_id, reward)

    @rule(which=SOME, late=st.booleans())
    def fail(self, which: int, late: bool) -> None:
        claim = self._take(which)
        if claim is None:
            return
        state: Any = "timed_out" if late else "failed"
        self.store.finish(claim, state=state, finish_reason="error", worked_s=1.0)
        self.model.ends(claim.job_id, None)

    @rule(which=SOME)
    def cancel_a_job(self, which: int) -> None:
        """Somebody cancels one job that waits."""
        running = {claim.job_id for claim in self.claims}
        waiting = sorted(self.model.live_jobs - running)
        if waiting:
            job_id = waiting[which % len(waiting)]
            self.store.cancel(job_id)
            self.model.ends(job_id, None, cancelled=True)

    @rule(which=SOME)
    def speak_late(self, which: int) -> None:
        """A claim that was ended elsewhere goes on trying to write."""
        job = sorted(self.model.groups)
        if job and self.claims:
            claim = self.claims[which % len(self.claims)]
            stale = Claim(**{**{n: getattr(claim, n) for n in claim.__slots__}, "fence": claim.fence + 5000})
            try:
                self.store.finish(stale, state="completed", finish_reason="stop", reward=1.0, worked_s=1.0)
            except FenceLost:
                return
            raise AssertionError("a claim of another fence wrote")

    @rule(count=st.integers(0, 4), more=st.booleans())
    def add_prompts(self, count: int, more: bool) -> None:
        if self.model.live:
            first = self.model.prompts
            page = MorePrompts.model_validate({"prompts": prompts(first, count), "more_prompts": more})
            assert self.batches.add("b", page) == count
            self.model.add(count, more=more)

    @rule(which=SOME)
    def withdraw(self, which: int) -> None:
        if self.model.prompts:
            prompt = which % self.model.prompts
            self.batches.withdraw("b", f"p{prompt}")
            self.model.withdraw(prompt)

    @rule()
    def ask_again(self) -> None:
        """The trainer did not hear the answer, and asks for the same batch."""
        assert not self.batches.create(self.request)
        if self.model.live:
            self.model.add(0, more=self.model.more and self.request.more_prompts)

    @rule()
    def tend(self) -> None:
        """The leader ends what is revoked and waits."""
        self.batches.tend()
        running = {claim.job_id for claim in self.claims}
        while waiting := sorted(self.model.revoked - running):
            self.model.ends(waiting[0], None, cancelled=True)

    @rule(lose=st.booleans())
    def broker(self, lose: bool) -> None:
        """From now on messages get lost, or not; the sweep would find them."""
        self.lose_next = lose
        if not lose:
            known = {message.job_id for message in self.messages}
            for job_id in sorted(self.model.live_jobs - known - {claim.job_id for claim in self.claims}):
                self.messages.append(Message("init", "init", job_id, 0, 5))

    @rule(chance=st.integers(0, 30))
    def cancel_the_batch(self, chance: int) -> None:
        if chance == 0:
            self.batches.cancel("b")
            self.model.cancel()

    @rule()
    def forget_scripts(self) -> None:
        self.client.script_flush()

    def _take(self, which: int) -> Claim | None:
        """A claim that is at work. One that was revoked hears of it at its next beat, and ends."""
        if not self.claims:
            return None
        claim = self.claims.pop(which % len(self.claims))
        told = self.store.heartbeat([(claim.job_id, claim.fence)])
        assert (claim.job_id in told.cancelled) == (claim.job_id in self.model.revoked)
        if told.cancelled:
            self.store.finish(claim, state="cancelled", finish_reason="cancelled", worked_s=1.0)
            self.model.ends(claim.job_id, None, cancelled=True)
            return None
        return claim

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        model, status = self.model, self.batches.status("b")
        groups = status.groups
        assert (status.state, status.jobs.live) == (model.state, len(model.live_jobs))
        assert [view.prompt_id for view in self.batches.groups("b", 0, 100)] == [f"p{n}" for n in model.won]
        assert (groups.uninformative, groups.failed, groups.revoked) == tuple(model.closed.values())
        assert groups.inflight == sum(group.state == "open" for group in model.groups.values())
        assert (groups.pending, status.jobs.redrawn) == (len(model.waiting), model.redrawn)
        # Whatever the model holds against: no more than asked for, in flight or won.
        assert len(model.won) <= model.target
        assert status.jobs.live <= model.room
        assert (status.state == "complete") == (len(model.won) == model.target)
        kept = self.client.zrange(self.keys("batch", "b"), 0, -1)
        alive = {s.job_id for s in self.store.statuses([j.decode() for j in kept]) if s.state not in TERMINAL}
        assert alive == model.live_jobs
        assert {job.decode() for job in self.client.zrange(self.keys("revoked"), 0, -1)} == model.revoked


def test_a_batch_does_what_the_model_does_in_any_order(redis_client: redis.Redis) -> None:
    class OnRealRedis(BatchLife):
        client = redis_client

    run_state_machine_as_test(
        OnRealRedis,
        settings=settings(
            max_examples=30,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
