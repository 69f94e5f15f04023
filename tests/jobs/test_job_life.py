"""A job's life under random histories: whatever happens in whatever order, the store does what the model does.

Every message stays in flight for ever, so that each may be delivered at any time, again and again; every claim is kept,
so that what has lost its fence goes on trying to write.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from life_steps import Happenings
from life_world import BOOTS, Choice

STEPS = Counter(
    come_to_rollout=8, deliver=16, commit=6, turn=6, observe=4, acquire=3, release=2, sweep=10, process_dies=7,
    lease_lapses=4, hand_back=2, restart=1, fail=2, finish=3, create=1, cancel=1, cancel_is_neglected=1, retry=2,
    stall=2, node_is_silent=1, node_beats=2, scripts_are_forgotten=1,
)  # fmt: skip
"""How often each is tried. One rule draws them all, since of many rules each history would leave out half."""


class Life(Happenings, RuleBasedStateMachine):
    """Random histories that can be shrunk."""

    @initialize()
    def from_the_beginning(self) -> None:
        self.begin()

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
