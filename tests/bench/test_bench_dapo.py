"""The simulation of batches: other ways against cases worked out by hand, ours against its own counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from prorl_celery.bench.dapo.ahead import AheadRedis
from prorl_celery.bench.dapo.commands import count_alone, count_batch
from prorl_celery.bench.dapo.figure import slots, slots_in_use
from prorl_celery.bench.dapo.outcome import Outcome
from prorl_celery.bench.dapo.rivals import WAYS, first_server, greedy, oracle, rounds
from prorl_celery.bench.dapo.simulated import ours
from prorl_celery.bench.dapo.workload import Prompts, Sample, Workload
from prorl_celery.bench.report import BenchFailed, Report
from prorl_celery.bench.tokens.balance import own_redis
from prorl_celery.settings import Settings

TINY = Workload("tiny", samples=2, target=1, slots=4)
SMALL = Workload("small", samples=4, target=6, slots=48)


class Told(Prompts):
    """Prompts whose samples are given: for each prompt (seconds, reward) of each sample."""

    def __init__(self, workload: Workload, *groups: tuple[tuple[float, float], ...]) -> None:
        super().__init__(workload, 0)
        self._told = groups

    def group(self, prompt: int, again: int = 0) -> list[Sample]:
        return [Sample(*sample) for sample in self._told[prompt % len(self._told)]]


UNIFORM = ((10.0, 1.0), (20.0, 1.0))
SLOW = ((30.0, 0.0), (50.0, 1.0))
QUICK = ((5.0, 0.0), (7.0, 1.0))


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    with own_redis() as settings:
        yield settings


@pytest.fixture
def client(settings: Settings) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(settings.redis_url) as client:
        client.flushall()
        yield client


def test_rounds_wait_for_the_last_sample_of_each_round():
    # Two groups a round: uniform and slow (50 s, one is kept), and for two groups a second round that is the same.
    load = Told(TINY, UNIFORM, SLOW)
    one = rounds(load, 1)
    assert (one.seconds, one.uniform_s, one.wasted_s, one.groups, one.won) == (50.0, 30.0, 0.0, [1], [1])
    two = rounds(load, 2)
    assert (two.seconds, two.uniform_s, two.groups, two.worked_s) == (100.0, 60.0, [1, 1], 220.0)
    # Of two that are informative one is too many.
    assert rounds(Told(TINY, SLOW, QUICK), 1).wasted_s == 12.0


def test_greedy_fills_every_slot_and_throws_away_what_runs_at_the_target():
    # Four slots: uniform and slow begin at 0. At 10 a slot is free: quick's first sample, until 15, its second from 15
    # to 22, which is the target. By then the uniform group has ended (20), and two samples run that were begun at 0
    # (slow's); at 20 another group had a slot: uniform again, from 20 to 22.
    found = greedy(Told(TINY, UNIFORM, SLOW, QUICK), 1)
    assert (found.seconds, found.won, found.uniform_s) == (22.0, [2], 30.0)
    assert found.wasted_s == 22.0 + 22.0 + 2.0
    assert found.worked_s == found.wasted_s + 30.0 + 12.0


def test_the_oracle_takes_only_informative_prompts_in_order():
    # Slow and quick begin at 0, and quick is there at 7; from 5 on slow's next turn has the free slot.
    found = oracle(Told(TINY, UNIFORM, SLOW, QUICK), 1)
    assert (found.seconds, found.won, found.uniform_s) == (7.0, [2], 0.0)
    assert found.wasted_s == 7.0 + 7.0 + 2.0


def test_the_first_server_begins_unfinished_prompts_anew():
    # Step one is as greedy: a train batch is one prompt. In step two slow and the second uniform group are begun again;
    # as their slots come free the dataset goes on: slow at 10 and 20, quick at 30 and 35, which is there at 42.
    found = first_server(Told(TINY, UNIFORM, SLOW, QUICK), 2)
    assert found.groups == [1, 1]
    assert found.won == [2, 5]
    assert found.seconds == 22.0 + 42.0
    assert found.uniform_s == 30.0 + 30.0


def test_every_second_of_work_is_of_a_group_that_counted_or_uniform_or_wasted(client: redis.Redis, settings: Settings):
    load = Prompts(SMALL, 3)
    ways = {**WAYS, "ours": lambda prompts, steps: ours(client, settings, prompts, steps)}
    for name, way in ways.items():
        found = way(load, 3)
        assert found.groups == [SMALL.target] * 3, name
        if name == "first server":
            continue  # a prompt's samples of its later life are others
        kept = sum(sample.seconds for prompt in found.won for sample in load.group(prompt))
        assert len(found.won) == len(set(found.won)) == 3 * SMALL.target, name
        assert found.worked_s == pytest.approx(kept + found.uniform_s + found.wasted_s, abs=1.0), name
        assert found.wasted_s > 0, name


def test_what_still_runs_of_a_group_that_is_given_up_is_waste(client: redis.Redis, settings: Settings):
    load = Prompts(SMALL, 5)
    found = ours(client, settings, load, 1, stop_uniform_after=2)
    kept = sum(sample.seconds for prompt in found.won for sample in load.group(prompt))
    assert found.groups == [SMALL.target]
    assert found.worked_s == pytest.approx(kept + found.uniform_s + found.wasted_s, abs=1.0)
    assert found.uniform > 0


def test_a_seed_gives_the_same_run_again(client: redis.Redis, settings: Settings):
    def run(seed: int) -> Outcome:
        client.flushall()
        return ours(client, settings, Prompts(SMALL, seed), 2)

    first = run(7)
    assert run(7) == first
    assert run(8).seconds != first.seconds


def test_our_way_is_never_ahead_of_time_and_never_over_its_slots(client: redis.Redis, settings: Settings):
    found = ours(client, settings, Prompts(SMALL, 9), 2)
    assert all(a[0] <= b[0] for a, b in pairwise(found.busy))
    assert max(busy for _, busy in found.busy) == SMALL.slots


def test_with_more_ahead_more_is_begun(settings: Settings):
    def begun(ahead: float) -> float:
        with AheadRedis.from_url(settings.redis_url) as client:
            client.ahead = ahead
            client.flushall()
            return ours(client, settings, Prompts(SMALL, 2), 1).worked_s

    assert begun(1.0) < begun(8.0)


def test_a_batch_adds_few_commands_and_no_more_with_more_prompts(client: redis.Redis, settings: Settings):
    alone = count_alone(client, settings, 20)
    few, many = count_batch(client, settings, 20), count_batch(client, settings, 80)
    for batch in (few, many):
        assert batch[0] - alone[0] <= 2
        assert 0 < batch[1] - alone[1] <= 30
    assert many[1] < 1.25 * few[1]


def test_slots_in_use_are_those_since_the_last_change():
    found = Outcome(seconds=9.0, busy=[(0.0, 4), (3.0, 2), (3.0, 3)])
    assert [slots_in_use(found, at) for at in (0, 2.9, 3, 8.9, 9)] == [4, 4, 3, 3, None]
    report = Report("dapo", 1)
    slots(report, dict.fromkeys((*WAYS, "ours"), found))
    assert report.tables[0].columns == ("second", "rounds", "first server", "ours", "oracle")
    assert report.tables[0].rows == [["0", 4.0, 4.0, 4.0, 4.0], ["target at", 9.0, 9.0, 9.0, 9.0]]


def test_without_matplotlib_a_figure_is_refused_with_the_way_to_get_it(tmp_path: Path):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('no', name='matplotlib')")
    code = "from prorl_celery.bench.dapo.figure import drawing; drawing()"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert BenchFailed.__name__ in done.stderr
    assert "prorl-celery[bench]" in done.stderr
