"""What grading costs: each kind once, and that the processor time of sandboxes is not lost with them."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from prorl_celery.bench.kinds import answers, calls, code, kinds, swe
from prorl_celery.bench.kinds import cost as cost_module
from prorl_celery.bench.kinds.cost import Meter, cost, expect, in_turns
from prorl_celery.bench.kinds.run import _sandboxes
from prorl_celery.bench.processes import tree
from prorl_celery.bench.report import BenchFailed, Report
from prorl_celery.bench.sizes import Sizes
from prorl_celery.node.pause import until

ALL = {
    *answers.MATH_FIGURES, *answers.GYM_FIGURES, *answers.STEM_FIGURES, *code.FIGURES, *code.RATIO_FIGURES,
    *swe.FIGURES, *calls.ASK_FIGURES, *calls.REWARD_FIGURES,
}  # fmt: skip


@pytest.mark.e2e
@pytest.mark.slow
def test_every_kind_is_measured_and_nothing_is_left(tiny: Sizes, tmp_path: Path, monkeypatch):
    before = {process.pid for process in tree(os.getpid())}
    monkeypatch.setattr(cost_module, "LEAST_CPU_SECONDS", 0.02)
    place = Path(tempfile.mkdtemp(prefix="prorl-test-"))
    place.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    report = kinds(tiny)
    assert report.failed == 0, report.absent
    assert set(report.figures) == ALL | {"code_cases_40_s", "code_cases_40_per_cpu_s"}
    assert set(report.absent) == set(code.MANY_FIGURES)
    assert all(value > 0 for name, value in report.figures.items() if not name.endswith("_added_ms"))
    told = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert (told["name"], told["failed"]) == ("kinds", 0)
    assert until(lambda: {process.pid for process in tree(os.getpid())} <= before, 30, every=0.05)
    assert list(place.iterdir()) == []
    place.rmdir()


def test_answers_are_graded_and_a_reward_server_is_asked(monkeypatch):
    monkeypatch.setattr(cost_module, "LEAST_CPU_SECONDS", 0.01)
    report = Report("kinds", 1)
    answers.stem(report, 0.0)
    calls.reward_url(report, 0.0)
    assert set(report.figures) == {*answers.STEM_FIGURES, *calls.REWARD_FIGURES}
    assert all(value > 0 for name, value in report.figures.items() if not name.endswith("_added_ms"))


def test_without_pytest_there_are_no_figures_of_patches(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(swe, "NEEDED", ("pytest", "no-such-package"))
    report = Report("kinds", 1)
    swe.evals(report, pytest.fail, Path("/usr/bin/python3"), tmp_path, 0.0)
    assert report.absent == dict.fromkeys(swe.FIGURES, "no-such-package is not installed here")
    assert report.failed == 0


def test_what_a_sandbox_used_is_counted_though_it_has_ended():
    with _sandboxes() as start:
        meter = Meter()

        def burn(_: int) -> int:
            sandbox = meter.metered(start)()
            try:
                ran = sandbox.shell.run("python3 -c 'import time\nwhile time.process_time() < 0.5: pass'", timeout=60)
            finally:
                sandbox.stop()
            assert ran.exit_code == 0
            return 1

        assert cost(burn, 0.0, meter).cpu_s > 0.4


def test_work_that_takes_next_to_nothing_is_repeated_until_it_can_be_measured():
    done: list[int] = []

    def act(number: int) -> int:
        done.append(number)
        return 2

    found = cost(act, 0.01)
    assert found.cpu_s >= 0.2
    assert done[:3] == [0, 0, 1], "the first is not counted"
    assert found.count == 2 * (len(done) - 1)


def test_two_ways_take_turns():
    order: list[str] = []
    took = in_turns({"ours": lambda: order.append("ours"), "bare": lambda: order.append("bare")}, 0.0)
    assert order == ["ours", "bare"] * 4
    assert [len(took[name]) for name in ("ours", "bare")] == [3, 3], "the first turn is not counted"


def test_a_grader_that_errs_is_not_measured():
    with pytest.raises(BenchFailed, match="came to the reward 0"):
        expect(0.0, 1.0, "the fix")
