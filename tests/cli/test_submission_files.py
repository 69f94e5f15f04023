"""The files of `prorl submit`: what is read twice must be the same both times, what is written has one writer."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from prorl_celery.cli.jobfile import JobOptions
from prorl_celery.cli.jobsource import JobSource
from prorl_celery.cli.resultfile import ResultFile
from prorl_celery.errors import SettingsError

ROW = json.dumps({"data_source": "math", "problem": "1+1", "answer": "2"}) + "\n"
OPTIONS = JobOptions(run="r")


def test_a_pipe_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(ROW), daemon=True)
    writer.start()
    with pytest.raises(SettingsError, match="is read twice"):
        JobSource.of_file(tmp_path / "pipe", OPTIONS)
    assert (tmp_path / "pipe").read_text() == ROW
    writer.join(5.0)


@pytest.mark.parametrize("text", [ROW * 3, ROW.replace("2", "3"), ""], ids=["longer", "another", "emptied"])
def test_a_file_that_was_changed_after_the_check_is_not_sent(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(ROW)
    source = JobSource.of_file(file, OPTIONS)
    assert source.check(None).good == 1
    (tmp_path / "new").write_text(text)
    (tmp_path / "new").replace(file)
    with pytest.raises(SettingsError, match="was changed since its rows were checked"):
        list(source.jobs())


def test_a_file_that_is_changed_while_it_is_sent_is_told_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(ROW)
    source = JobSource.of_file(file, OPTIONS)
    source.check(None)
    jobs = source.jobs()
    next(jobs)
    with file.open("a") as more:
        more.write("\n")
    with pytest.raises(SettingsError, match="was changed"):
        list(jobs)


def test_two_runs_do_not_write_to_one_file_of_results(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ResultFile(path) as first:
        first.append({"job_id": "a"})
        with pytest.raises(SettingsError, match="is being written by another"), ResultFile(path):
            pass
    with ResultFile(path) as second:
        assert [result["job_id"] for result in second.results] == ["a"]
