"""`prorl submit` looks at every row before it sends the first."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from prorl_celery.cli import rowreport
from prorl_celery.cli.jobfile import JobOptions, bodies_of, jobs_of
from prorl_celery.cli.jobsource import JobSource
from prorl_celery.cli.submit import submit
from prorl_celery.data.files import Row, rows_of
from prorl_celery.errors import ApiError, SettingsError
from prorl_celery.handlers.base import Handler
from prorl_celery.handlers.registry import HandlerRegistry, load_handlers
from prorl_celery.settings import Settings

MATH = {"data_source": "math", "problem": "1+1", "answer": "2"}
NOWHERE = ("--url", "http://127.0.0.1:1")


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRORL_HANDLERS", raising=False)

    def running(*arguments: object) -> Result:
        return CliRunner().invoke(submit, [str(argument) for argument in arguments])

    return running


def test_bad_rows_are_told_with_line_and_field_and_nothing_is_sent(run: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", MATH, "", {**MATH, "answer": None}, "{", {**MATH, "job_id": "x"}, {"x": 1})
    told = run(file, *NOWHERE)  # a service that is away would be waited for
    assert told.exit_code == 2
    for line in (
        "line 3: instance.answer: 'answer' must be",
        "line 4: not JSON",
        "line 5: job_id: ids are made from the contents",
        "line 6: instance.data_source: Field required",
        "nothing was sent",
    ):
        assert line in told.stderr


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"instance": MATH, "sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"instance": MATH, "agent": {"tools": ["hammer"]}}, "agent.tools"),
        ({"instance": MATH, "unheard_of": 1}, "unheard_of"),
        ({"instance": MATH, "sampling_params": "hot"}, "sampling_params: "),
        ({"instance": MATH, "tags": ["a"]}, "tags: "),
        ({"instance": "math"}, "instance: "),
        ({**MATH, "deep": json.loads(400 * "[" + 400 * "]")}, "line 1: "),
        ({"instance": {**MATH, "instance_id": "\n"}}, "instance.instance_id"),
        ({"instance": MATH, "reward_shaping": {"overlong": {"max_tokens": 1, "buffer_tokens": 2}}}, "buffer_tokens"),
        ({"instance": {"data_source": "swe", "problem_statement": 1}, "reward_url": "x"}, "reward_url"),
        ({"instance": {"data_source": "math", "problem": "\ud800", "answer": "2"}}, "instance.problem"),
    ],
)
def test_what_the_service_would_refuse_is_refused_here(
    run: Any, tmp_path: Path, body: dict[str, Any], field: str
) -> None:
    told = run(write(tmp_path / "a.jsonl", body), "--dry-run")
    assert told.exit_code == 2
    assert field in told.stderr


class Mine(Handler):
    data_source = "mine"


def test_a_reward_server_needs_something_to_score_by(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"data_source": "mine", "ground_truth": None}, {"data_source": "mine"})
    source = JobSource.of_file(file, JobOptions(run="r", reward_url="http://r/"))
    report = source.check(HandlerRegistry({"mine": Mine()}))
    assert [(bad.where, bad.field) for bad in report.bad] == [("line 2", "instance.ground_truth")]
    assert [job["reward_url"] for job in source.jobs()] == ["http://r/"]


def test_so_many_bad_rows_are_told_and_the_others_counted(run: Any, tmp_path: Path) -> None:
    told = run(write(tmp_path / "a.jsonl", *["{"] * 1000), "--dry-run")
    assert told.stderr.count(": not JSON") == 20
    assert "980 more rows will not do" in told.stderr


def test_bad_rows_can_be_left_out_but_not_the_end_of_a_file(run: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", MATH, "{", {**MATH, "problem": "1+2", "answer": "3"})
    told = run(file, "--dry-run", "--skip-bad", "--json")
    assert told.exit_code == 0
    found = json.loads(told.stdout)
    assert (found["rows"], found["bad_rows"], found["jobs"]) == (2, 1, 2)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(file.read_bytes() * 100)[:-9])
    told = run(cut, "--dry-run", "--skip-bad")
    assert told.exit_code == 2
    assert "cannot be read on" in told.stderr


def test_the_rows_that_are_left_have_the_ids_that_they_have_without_the_bad_ones(tmp_path: Path) -> None:
    other = {**MATH, "problem": "1+2", "answer": "3"}
    good = write(tmp_path / "good.jsonl", MATH, other, MATH)
    mixed = write(tmp_path / "mixed.jsonl", "{", MATH, {"x": 1}, other, MATH, "{")
    source = JobSource.of_file(mixed, JobOptions(run="r", samples=2))
    report = source.check(load_handlers(Settings()))
    assert list(report.bad_rows) == [1, 3, 6]
    expected = list(jobs_of(bodies_of(good), samples=2, run="r"))
    assert list(source.jobs()) == expected == list(source.jobs())


def test_ids_are_the_same_whether_rows_were_checked_or_not(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", MATH, {"instance": MATH, "sampling_params": {"seed": 7}}, MATH)
    checked, unchecked = (JobSource.of_file(file, JobOptions(run="r", samples=2)) for _ in range(2))
    checked.check(None)
    expected = list(jobs_of(bodies_of(file), samples=2, run="r"))
    assert list(checked.jobs()) == list(unchecked.jobs()) == expected


def test_an_id_does_not_change_from_one_version_to_the_next(tmp_path: Path) -> None:
    [job] = jobs_of(bodies_of(write(tmp_path / "a.jsonl", MATH)), samples=1, run="r")
    assert (job["job_id"], job["sampling_params"]["seed"]) == ("8aa4b7d31fe1aeda:0", 470174284)


def test_what_is_there_twice_is_told(run: Any, tmp_path: Path) -> None:
    named = {**MATH, "instance_id": "one"}
    file = write(tmp_path / "a.jsonl", named, {**named, "problem": "2"}, named, MATH, MATH)
    told = run(file, "--dry-run")
    assert told.exit_code == 0
    assert "2 rows are the same as another" in told.stderr
    assert "line 3: is the same as line 1; line 5: is the same as line 4" in told.stderr
    assert "line 2: is another instance with the instance_id of line 1" in told.stderr


def test_a_row_that_goes_bad_between_the_looks_is_not_sent(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", MATH)
    source = JobSource(str(file), lambda: rows_of(file), JobOptions(run="r"))
    source.check(None)
    write(file, "{")
    with pytest.raises(SettingsError, match=r"a\.jsonl, line 1: not JSON"):
        list(source.jobs())


def test_columns_are_mapped_by_a_file_or_a_name(run: Any, tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text('data_source = "math"\n[columns]\nproblem = "q"\nanswer = "a.0"\n')
    file = write(tmp_path / "a.jsonl", {"q": "1+1", "a": ["2"], "level": 1}, {"q": "1+2", "a": []})
    told = run(file, "--columns", "map.toml", "--dry-run", "--skip-bad", "--json")
    assert json.loads(told.stdout)["first"]["instance"] == MATH
    assert "line 2: answer: the row has no column 'a.0'" in told.stderr
    gsm8k = write(tmp_path / "g.jsonl", {"question": "1+1", "answer": "easy\n#### 2"})
    told = run(gsm8k, "--columns", "gsm8k", "--dry-run", "--json")
    assert json.loads(told.stdout)["first"]["instance"] == MATH
    assert "no such file, nor one of gsm8k" in str(run(file, "--columns", "nothing", "--dry-run").exception)


def test_parquet_rows_are_instances(run: Any, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{**MATH, "score": None}, {**MATH, "score": float("nan")}, {**MATH, "score": 1.0}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    told = run(tmp_path / "a.parquet", "--dry-run")
    assert told.exit_code == 2
    assert "row 2: instance.score: is nan, which JSON does not know" in told.stderr


def test_reward_options_are_in_the_jobs_and_what_a_row_says_goes_before(run: Any, tmp_path: Path) -> None:
    (tmp_path / "shaping.toml").write_text("[overlong]\nmax_tokens = 100\nbuffer_tokens = 10\n")
    file = write(tmp_path / "a.jsonl", MATH)
    arguments = ("--reward-shaping", "shaping.toml", "--reward-url", "http://r/", "--dry-run", "--json")
    first = json.loads(run(file, *arguments).stdout)["first"]
    assert first["reward_shaping"] == {"overlong": {"max_tokens": 100, "buffer_tokens": 10}}
    own = {"instance": MATH, "reward_url": "http://own/"}
    first = json.loads(run(write(file, own), *arguments).stdout)["first"]
    assert first["reward_url"] == "http://own/"
    (tmp_path / "shaping.toml").write_text("[overlong]\nmax_tokens = 1\nbuffer_tokens = 10\n")
    assert "reward_shaping.overlong.buffer_tokens: is more than" in run(file, *arguments).stderr


class Nodes:
    """A service whose nodes know one kind."""

    def __init__(self, status: int | None = None) -> None:
        self.status = status

    def get(self, *path: str) -> Any:
        if self.status:
            raise ApiError("no", status=self.status)
        return {"nodes": [{"handlers": ["theirs", "family/*"]}]}


@pytest.mark.parametrize(
    ("source", "status", "goes"),
    [("theirs", None, True), ("family/one", None, True), ("nobodys", None, False), ("nobodys", 403, True)],
)
def test_a_kind_that_nobody_serves_is_told_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], source: str, status: int | None, goes: bool
) -> None:
    rows = JobSource("rows", lambda: iter([Row(1, "row 1", {"data_source": source})]), JobOptions(run="r"))
    api: Any = Nodes(status)
    found = rowreport.check_rows(rows, api, skip_bad=False, show=False, as_json=False, samples=1)
    assert (found is not None) == goes
    assert f"1 rows of {source!r} were not checked" in capsys.readouterr().err


def test_handlers_that_cannot_be_loaded_leave_the_check_to_the_service(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRORL_HANDLERS", "missing.py:Mine")
    told = run(write(tmp_path / "a.jsonl", {**MATH, "answer": None}), "--dry-run")
    assert told.exit_code == 0
    assert "instances are not checked here: PRORL_HANDLERS" in told.stderr
