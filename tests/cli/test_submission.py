"""Submitting many jobs: bounded in flight, patient, each result written once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prorl_celery.cli.resultfile import ResultFile
from prorl_celery.cli.submission import CHUNK_BYTES, Submission
from prorl_celery.cli.submit import run_jobs
from prorl_celery.errors import ApiError, ApiUnavailable, SettingsError


class Service:
    """A service in memory: every job ends when the results are next asked for."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.running: list[str] = []
        self.most_running = 0
        self.posts = 0
        self.full_for = 0
        self.stream_is_cut = False

    def with_patience(self, patience: float) -> "Service":
        return self

    def post(self, *path: str, body: Any) -> Any:
        self.posts += 1
        if self.full_for:
            self.full_for -= 1
            raise ApiError("full", status=429)
        ended = {result["job_id"] for result in self.results}
        statuses = []
        for job in body["jobs"]:
            done = job["job_id"] in ended
            if not done:
                self.running.append(job["job_id"])
            statuses.append({"job_id": job["job_id"], "state": "completed" if done else "queued"})
        self.most_running = max(self.most_running, len(self.running))
        return {"jobs": statuses}

    def get(self, *path: str, after: str | None = None, limit: int = 100, **query: Any) -> Any:
        if path[-1] == "result":
            return next(result for result in self.results if result["job_id"] == path[2])
        if path[1] == "jobs":
            ended = {result["job_id"] for result in self.results}
            return {"job_id": path[2], "state": "completed" if path[2] in ended else "running"}
        self.results += [{"job_id": job_id, "state": "completed"} for job_id in self.running]
        self.running.clear()
        start = int((after or "0-0").partition("-")[0])
        page = [] if self.stream_is_cut else self.results[start : start + limit]
        return {"results": page, "next": f"{start + len(page)}-0" if page else None, "truncated": False}


def jobs(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"job_id": f"g:{number}", "tags": {"submit": "r"}}


def run(service: Service, path: Path, count: int, inflight: int = 1000) -> list[str]:
    with ResultFile(path) as out:
        found = Submission(service, out, jobs(count), inflight=inflight).run()  # type: ignore[arg-type]
        return [result["job_id"] for result in found if result is not None]


def written(path: Path) -> list[str]:
    return [json.loads(line)["job_id"] for line in path.read_text().splitlines()]


def test_every_result_is_written_once(tmp_path: Path) -> None:
    service = Service()
    found = run(service, tmp_path / "out.jsonl", 350)
    assert sorted(found) == sorted(job["job_id"] for job in jobs(350))
    assert written(tmp_path / "out.jsonl") == found


def test_no_more_than_the_limit_is_in_flight(tmp_path: Path) -> None:
    service = Service()
    assert len(run(service, tmp_path / "out.jsonl", 95, inflight=10)) == 95
    assert service.most_running <= 10


def test_a_second_run_submits_only_what_is_missing(tmp_path: Path) -> None:
    service = Service()
    run(service, tmp_path / "out.jsonl", 100)
    posts = service.posts
    assert run(service, tmp_path / "out.jsonl", 100) == []
    assert service.posts == posts
    assert len(run(service, tmp_path / "out.jsonl", 130)) == 30


def test_a_lost_result_file_is_filled_again_from_the_service(tmp_path: Path) -> None:
    service = Service()
    run(service, tmp_path / "out.jsonl", 60)
    (tmp_path / "out.jsonl").unlink()
    assert len(run(service, tmp_path / "out.jsonl", 60)) == 60


def test_a_full_service_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prorl_celery.cli.submission.HOLD_S", 0.01)
    service = Service()
    service.full_for = 3
    assert len(run(service, tmp_path / "out.jsonl", 5)) == 5


def test_a_service_that_stays_away_is_waited_for_as_long_as_the_calls_are_patient(tmp_path: Path) -> None:
    class Away(Service):
        def post(self, *path: str, body: Any) -> Any:
            raise ApiUnavailable("no answer", status=None)

        def get(self, *path: str, after: str | None = None, limit: int = 100, **query: Any) -> Any:
            raise ApiUnavailable("no answer", status=None)

    with pytest.raises(ApiUnavailable):
        run(Away(), tmp_path / "out.jsonl", 5)


@pytest.mark.parametrize("text", ["a note of mine\n", '{"data_source": "math"}\n', "[]\n", "\xff\n"])
def test_results_are_not_appended_to_another_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(SettingsError, match="line 1: no result of a job"):
        run(Service(), file, 1)
    assert file.read_text(encoding="latin-1") == text


def test_jobs_are_asked_for_one_by_one_when_the_stream_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorl_celery.cli.submission.DOUBT_S", 0.01)
    service = Service()
    service.stream_is_cut = True
    assert len(run(service, tmp_path / "out.jsonl", 45)) == 45


def test_large_jobs_go_a_few_at_a_time(tmp_path: Path) -> None:
    class Weighing(Service):
        heaviest = 0

        def post(self, *path: str, body: Any) -> Any:
            self.heaviest = max(self.heaviest, len(json.dumps(body)))
            return super().post(*path, body=body)

    size = CHUNK_BYTES // 3
    large = [{"job_id": f"g:{n}", "tags": {"submit": "r"}, "instance": {"text": "x" * size}} for n in range(10)]
    service = Weighing()
    with ResultFile(tmp_path / "out.jsonl") as out:
        found = Submission(service, out, large, inflight=1000).run()  # type: ignore[arg-type]
        assert len([result for result in found if result is not None]) == 10
    assert service.heaviest < CHUNK_BYTES + 2 * size


def test_a_second_run_counts_what_is_there_once_whatever_count_is_told(tmp_path: Path) -> None:
    service: Any = Service()
    path = tmp_path / "out.jsonl"
    first = run_jobs(service, lambda: jobs(20), path, count=20)
    again = run_jobs(service, lambda: jobs(20), path, count=20)
    more = run_jobs(service, lambda: jobs(25), path)
    assert [(tally.total, tally.done) for tally in (first, again, more)] == [(20, 20), (20, 20), (25, 25)]
    assert len(written(path)) == 25
