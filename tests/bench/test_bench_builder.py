"""The benchmark of the trajectory: a turn does the same work however long the conversation is."""

from __future__ import annotations

from itertools import pairwise

import pytest

from prorl_celery.bench.report import BenchFailed, Report
from prorl_celery.bench.tokens import builder, calls
from prorl_celery.bench.tokens.builder import TOKENS, TURNS, conversation
from prorl_celery.llm.trajectory import Trajectory


def test_every_turn_renders_and_encodes_as_much_as_any_other_up_to_128k_tokens() -> None:
    costs = conversation(seed=0)
    assert len(costs) == TURNS
    assert costs[-1].length >= TOKENS
    assert len({(cost.characters, cost.ids) for cost in costs}) == 1
    lengths = [cost.length for cost in costs]
    assert {after - before for before, after in pairwise(lengths)} == {lengths[1] - lengths[0]}


def test_its_figures_are_named_and_shown_in_a_table() -> None:
    report = Report("tokens", 1)
    builder.builder(report, rounds=1)
    assert set(report.figures) == set(builder.FIGURES)
    assert report.figures["rendered_ratio_200_to_10"] == report.figures["encoded_ratio_200_to_10"] == 1
    (table,) = report.tables
    assert [row[0] for row in table.rows] == ["10", "50", "200"]


def test_a_trajectory_that_loses_tokens_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trajectory, "add_sampled", lambda self, ids: None)
    with pytest.raises(BenchFailed, match="the trajectory holds"):
        conversation(seed=0)


def test_calls_of_ours_stand_beside_bare_ones() -> None:
    report = Report("tokens", 1)
    calls.calls(report, 3)
    assert set(report.figures) == set(calls.FIGURES)
    assert report.figures["our_call_ms_median"] > 0
