"""Reports, percentiles, rates."""

from __future__ import annotations

import json

import pytest

from prorl_celery.bench.overlap import shared_pool, steady_rate
from prorl_celery.bench.report import GOALS, BenchFailed, Report, Table, percentile
from prorl_celery.bench.runs import BENCHES, run
from prorl_celery.bench.sizes import FULL, QUICK, Sizes
from prorl_celery.cli.output import aligned


def test_a_percentile_is_one_of_the_values():
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 99) == 99.0
    assert percentile(values, 50) == 50.0
    assert percentile(values, 100) == 100.0
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_the_steady_rate_leaves_the_filling_of_the_pipeline_out():
    waves = [7.0 + wave for wave in range(10) for _ in range(4)]
    assert steady_rate(waves, 4) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="no more than the first wave"):
        steady_rate([1.0, 1.0], 2)


def test_a_shared_pool_counts_the_rollouts_under_way(tiny: Sizes):
    ended, peak = shared_pool(tiny, 8)
    assert len(ended) == tiny.waits
    assert peak == 8


def test_a_part_that_fails_leaves_its_reason_and_what_it_had_taken():
    report = Report("pipeline", 1)

    def take(taken: Report) -> None:
        taken.figures["jobs_per_s"] = 100.0
        raise BenchFailed("the machine is on fire")

    report.part("no-ops", ["jobs_per_s", "ratio_to_bare_chain"], take)
    assert report.failed == 1
    assert report.figures == {"jobs_per_s": 100.0}
    assert report.absent == {"ratio_to_bare_chain": "BenchFailed: the machine is on fire"}


def test_a_report_is_one_json_object_with_the_contracts_names():
    report = Report("tools", 3)
    report.figures["bash_bwrap_ms_median"] = 0.123456
    report.lack(["swerex_over_ours"], "not installed")
    told = json.loads(json.dumps(report.as_json()))
    assert {"name", "machine", "runs", "failed", "figures"} <= set(told)
    assert told["figures"] == {"bash_bwrap_ms_median": 0.1235}
    assert told["absent"] == {"swerex_over_ours": "not installed"}
    assert told["machine"]["cores"] >= 1


def test_the_table_says_which_goals_are_reached(capsys: pytest.CaptureFixture[str]):
    report = Report("pipeline", 1)
    report.figures.update({"ratio_to_bare_chain": 0.4, "overlap_efficiency": 0.95, "jobs_per_s": 1234.0})
    report.lack(["toy_peak_pss_mb"], "no rights")
    report.show()
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["ratio_to_bare_chain"] == ["0.4", ">= 0.5", "missed"]
    assert rows["overlap_efficiency"] == ["0.95", ">= 0.9", "reached"]
    assert rows["jobs_per_s"] == ["1234", "", ""]
    assert rows["toy_peak_pss_mb"] == ["absent", "", "no rights"]


def test_all_is_every_benchmark_in_one_report(monkeypatch: pytest.MonkeyPatch):
    for name in BENCHES:
        monkeypatch.setitem(BENCHES, name, lambda sizes, name=name: Report(name, 1, 1, {f"{name}_x": 1.0}))
    report = run("all", QUICK)
    assert report.failed == len(BENCHES)
    assert set(report.figures) == {f"{name}_x" for name in BENCHES}


def test_a_figure_that_two_benchmarks_have_is_in_all_under_both_names(capsys: pytest.CaptureFixture[str]):
    dapo = Report("dapo", 1, 0, {"redis_commands_per_job_100": 3.0}, {"redis_commands_per_job_10000": "no time"})
    both = Report("all", 1, 0, {"redis_commands_per_job_100": 50.0, "redis_commands_per_job_10000": 51.0})
    both.take_in(dapo)
    assert both.figures["redis_commands_per_job_100"] == 50.0
    assert both.figures["dapo_redis_commands_per_job_100"] == 3.0
    assert both.absent == {"dapo_redis_commands_per_job_10000": "no time"}
    for report, name in ((both, "dapo_redis_commands_per_job_100"), (dapo, "redis_commands_per_job_100")):
        report.show()
        rows = {line.split("\t")[0]: line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()}
        assert rows[name] == ["3", "<= 2", "missed"]


def test_goals_belong_to_the_full_sizes():
    assert set(FULL.counted) == {100, 10_000}
    assert (FULL.toys, FULL.crowd, FULL.commands) == (64, 256, 1000)
    assert (QUICK.toys, QUICK.crowd) == (64, 256)
    assert GOALS["redis_commands_per_job_10000"] == ("<=", 60)


def test_tables_are_printed_before_the_figures_and_are_in_the_json(capsys: pytest.CaptureFixture[str]):
    report = Report("tools", 1)
    report.figures["bash_bwrap_ms_median"] = 0.1
    report.tables.append(Table("ways", ["way", "true", "start"], [["ours", 0.123456, None], ["tmux", 618.0, ">=10"]]))
    report.show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["ways", "way\ttrue\tstart", "ours\t0.1235\t-", "tmux\t618\t>=10"]
    assert lines[-1].startswith("bash_bwrap_ms_median\t0.1\t")
    (table,) = json.loads(json.dumps(report.as_json()))["tables"]
    assert table == {
        "title": "ways",
        "rows": [{"way": "ours", "true": 0.1235, "start": None}, {"way": "tmux", "true": 618.0, "start": ">=10"}],
    }


def test_a_column_of_numbers_has_its_points_below_each_other():
    assert aligned(["0.1235", "-", "618", "2.5"]) == ["0.1235", "-     ", "618     ", "2.5   "]
