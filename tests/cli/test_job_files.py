"""Jobs from files: ids that come from contents, results that survive a kill."""

import json
from itertools import islice
from pathlib import Path

import pytest

from prorl_celery.cli.jobfile import bodies_of, group_of, human_eval_bodies, jobs_of
from prorl_celery.cli.resultfile import ResultFile
from prorl_celery.errors import SettingsError
from prorl_celery.jobs.models import JobRequest


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ids(path: Path, samples: int = 2, run: str = "r") -> list[str]:
    return [job["job_id"] for job in jobs_of(bodies_of(path), samples=samples, run=run)]


MATH = {"data_source": "math", "problem": "1+1", "answer": "2"}
OTHER = {"data_source": "math", "problem": "1+2", "answer": "3"}


def test_the_same_file_gives_the_same_ids_and_a_new_line_only_new_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", MATH)
    before = ids(file)
    assert ids(file) == before
    assert ids(write(file, MATH, OTHER))[:2] == before
    assert not set(ids(write(file, OTHER))) & set(before)


def test_equal_lines_are_different_jobs(tmp_path: Path) -> None:
    found = ids(write(tmp_path / "a.jsonl", MATH, MATH), samples=3)
    assert len(set(found)) == 6
    assert len({group_of(job_id) for job_id in found}) == 2


def test_another_run_repeats_the_jobs_under_other_ids(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", MATH)
    assert not set(ids(file, run="one")) & set(ids(file, run="two"))


def test_samples_have_seeds_of_their_own_that_never_change(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", MATH, {"instance": OTHER, "sampling_params": {"seed": 7}})
    jobs = list(jobs_of(bodies_of(file), samples=2, run="r"))
    seeds = [job["sampling_params"]["seed"] for job in jobs]
    assert seeds[2:] == [7, 8]
    assert seeds[0] != seeds[1]
    assert seeds == [job["sampling_params"]["seed"] for job in jobs_of(bodies_of(file), samples=2, run="r")]


def test_seeds_begin_again_where_the_service_would_take_no_greater_one(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"instance": OTHER, "sampling_params": {"seed": 2**63 - 1}})
    jobs = [JobRequest.model_validate(job) for job in jobs_of(bodies_of(file), samples=3, run="r")]
    assert [job.sampling_params.seed for job in jobs] == [2**63 - 1, 0, 1]


def test_what_a_line_says_goes_before_the_options(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"instance": MATH, "sampling_params": {"temperature": 0.3}})
    [job] = jobs_of(bodies_of(file), samples=1, run="r", sampling_params={"temperature": 1.0, "max_tokens": 9})
    assert job["sampling_params"]["temperature"] == 0.3
    assert job["sampling_params"]["max_tokens"] == 9


def test_a_human_eval_job_is_one_that_the_api_takes() -> None:
    jobs = list(jobs_of(islice(human_eval_bodies(), 3), samples=2, run="demo"))
    assert len(jobs) == 6
    assert {JobRequest.model_validate(job).instance.data_source for job in jobs} == {"code"}


@pytest.mark.parametrize(
    ("line", "says"), [("{", "line 2: not JSON"), ("[1]", "line 2"), ('{"job_id": "x"}', "job_id")]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    file = write(tmp_path / "a.jsonl", MATH)
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(SettingsError, match=says):
        list(bodies_of(file))


def test_half_a_result_at_the_end_is_cut_off_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ResultFile(path) as out:
        out.append({"job_id": "a", "segments": [1]})
        out.append({"job_id": "b"})
        out.flush("5-0")
    with path.open("ab") as file:
        file.write(b'{"job_id": "c", "messa')
    with ResultFile(path) as out:
        assert [result["job_id"] for result in out.results] == ["a", "b"]
        assert "segments" not in out.results[0]
        assert out.cursor == "5-0"
        out.append({"job_id": "c"})
    assert [json.loads(line)["job_id"] for line in path.read_text().splitlines()] == ["a", "b", "c"]
