"""Figures of a run, however many results it has."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from prorl_celery.cli.report import Durations, Tally


def result(group: int, sample: int, reward: float | None, seconds: float = 1.0) -> dict[str, Any]:
    error = None if reward is not None else {"kind": "eval"}
    timing = {"rollout": {"queued": seconds, "running": 2 * seconds}}
    state = "completed" if error is None else "failed"
    return {"job_id": f"g{group}:{sample}", "state": state, "reward": reward, "error": error, "timing": timing}


@pytest.mark.parametrize("samples", [0, 3])
def test_groups_count_by_their_scored_samples_in_whatever_order_they_come(samples: int) -> None:
    rewards = {
        1: (0.0, 1.0, 0.0),
        2: (1.0, 1.0, 1.0),
        3: (0.5, None, None),
        4: (None, None, None),
        5: (None, -1.0, 2.0),
    }
    results = [result(group, sample, reward) for group, all_ in rewards.items() for sample, reward in enumerate(all_)]
    random.Random(7).shuffle(results)
    tally = Tally(len(results), samples=samples)
    for one in results:
        tally.add(one)
    summary = tally.summary()
    assert (summary["groups"], summary["informative_groups"]) == (4, 2)
    assert summary["reward_mean"] == pytest.approx(statistics.fmean([0, 1, 0, 1, 1, 1, 0.5, -1, 2]))
    assert (summary["states"], summary["errors"]) == ({"completed": 9, "failed": 6}, {"eval": 6})


def test_a_group_whose_samples_have_all_come_takes_no_memory() -> None:
    tally = Tally(2000, samples=2)
    for group in range(1000):
        tally.add(result(group, 0, 0.0))
        if group % 2 == 0:
            tally.add(result(group, 1, 1.0))
    assert (tally.groups, tally.informative) == (1000, 500)
    assert len(tally._open) == 500


def test_a_median_is_right_to_three_digits_and_the_longest_is_exact() -> None:
    seconds = [random.Random(3).lognormvariate(0, 3) for _ in range(9_999)]
    seconds += [random.Random(n).lognormvariate(0, 3) for n in range(10_000)]
    found = Durations()
    for one in seconds:
        found.add(one)
    assert found.median == pytest.approx(statistics.median(seconds), rel=0.005)
    assert found.longest == max(seconds)
    assert len(found.counts) < 9_000


def test_of_no_duration_there_is_no_median_and_none_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(IndexError):
        _ = Durations().median
    tally = Tally(1)
    tally.show()
    assert "init\t-\t-\t-\t-" in capsys.readouterr().out
    tally.add(result(1, 0, None, 0.0))
    tally.show()
    assert "rollout\t0 ms\t0 ms\t0 ms\t0 ms" in capsys.readouterr().out


def test_the_first_error_of_each_kind_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(3)
    for message in ("no such folder\nTraceback ...", "another"):
        tally.add(result(0, 0, None) | {"error": {"kind": "bad_instance", "message": message}})
    tally.show()
    assert "the first bad_instance error\tno such folder\n" in capsys.readouterr().out
