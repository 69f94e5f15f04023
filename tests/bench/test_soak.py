"""The soak: what is counted and how, and a short one as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from redis_fixtures import claim, complete, submit

from prorl_celery.bench.soak.account import MUST_BE_ZERO, Account
from prorl_celery.bench.soak.audit import executions_wasted, turns_redone
from prorl_celery.bench.soak.jobs import soak_jobs
from prorl_celery.bench.soak.recovery import FIELDS, Hit, at_work, hit_of
from prorl_celery.jobs.models import JobList, JobRequest
from prorl_celery.jobs.store import JobStore


def test_the_jobs_of_a_seed_are_always_the_same_and_of_all_kinds() -> None:
    jobs = soak_jobs(100, 7)
    assert jobs == soak_jobs(100, 7)
    assert jobs != soak_jobs(100, 8)
    assert {job["tags"]["kind"] for job in jobs} == {"code", "sum", "steps", "toy"}
    JobList(jobs=tuple(JobRequest.model_validate(job) for job in jobs))


def calls(folder: Path, *made: tuple[str, int, float, str]) -> list[Path]:
    """A backend's journal: job, turn, when, how it ended."""
    lines = [
        json.dumps({"request_id": f"cmpl-{job}-t{turn}-{number:08x}", "started": at, "outcome": outcome})
        for number, (job, turn, at, outcome) in enumerate(made)
    ]
    (folder / "journal").write_text("\n".join(lines) + "\n")
    return [folder / "journal"]


def hit(job_id: str, *, at: float, turns: int, victim: str = "rollout") -> Hit:
    return Hit(job_id, victim, at, 2, "1000", turns, 1)


def test_a_turn_that_was_in_the_log_and_is_sampled_again_is_redone(tmp_path: Path) -> None:
    journals = calls(
        tmp_path,
        ("soak-1", 0, 1.0, "stop"),
        ("soak-1", 1, 2.0, "disconnect"),  # in flight when the worker died
        ("soak-1", 1, 4.0, "stop"),
        ("soak-2", 0, 1.0, "stop"),
        ("soak-2", 0, 4.0, "stop"),
        ("soak-2", 1, 5.0, "disconnect"),
        ("soak-22", 0, 4.0, "stop"),
    )
    hits = [hit("soak-1", at=3.0, turns=1), hit("soak-2", at=3.0, turns=2)]
    assert turns_redone(journals, hits, []) == (["soak-2"], 0)
    assert turns_redone(journals, hits, [3.5]) == ([], 1), "its sandbox went with the keeper"
    assert turns_redone(journals, hits, [4.5]) == (["soak-2"], 0), "that was later"


@pytest.mark.parametrize(
    ("change", "is_at_work"),
    [
        ({}, False),
        ({"state": "queued", "fence": "3", "active": "2000"}, False),
        ({"state": "running", "fence": "4", "active": "2000"}, True),
        ({"active": "2000"}, True),
        ({"state": "failed"}, True),
    ],
)
def test_a_job_is_at_work_again_with_its_next_claim_turn_or_end(change: dict[str, str], is_at_work: bool) -> None:
    record = {"state": "running", "fence": "2", "active": "1000"}
    assert at_work(record | change, hit("soak-1", at=0.0, turns=0)) == is_at_work


def test_a_job_that_starts_over_has_no_turns_to_lose() -> None:
    record = dict.fromkeys(FIELDS, "") | {"fence": "7", "nturns": "3", "log": "5", "rf": "5"}
    assert hit_of("soak-1", record, "rollout", 1.0).turns == 3
    assert hit_of("soak-1", record | {"rf": "0"}, "init", 1.0).turns == 0


def test_claims_beyond_the_first_of_each_stage_are_wasted(redis_store: JobStore) -> None:
    complete(redis_store, "good")
    first = claim(redis_store, submit(redis_store, "again"))
    message = redis_store.hand_back(first, worked_s=0.1, waited_s=0.0)
    assert message is not None
    claim(redis_store, message)
    assert executions_wasted(redis_store, ["good", "again"]) == (1, 5)


def test_an_account_is_good_only_where_all_ended_once_and_nothing_is_left() -> None:
    figures = {"jobs": 3, "submitted": 3, "ended_once": 3} | dict.fromkeys(MUST_BE_ZERO, 0)
    assert Account(figures).good
    assert not Account(figures | {"ended_once": 2}).good
    assert not Account(figures | {"submitted": 2, "ended_once": 2}).good
    for name in MUST_BE_ZERO:
        assert not Account(figures | {name: 1}).good


@pytest.mark.e2e
@pytest.mark.slow
def test_a_short_soak_ends_every_job_once() -> None:
    command = [Path(sys.executable).with_name("prorl"), "soak", "--jobs", "60", "--kill-every", "1.5", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert told.stdout, told.stderr
    figures = json.loads(told.stdout)
    assert told.returncode == 0, figures
    assert figures["submitted"] == figures["ended_once"] == figures["completed"] == 60
    assert sum(figures["kills"].values()) >= 5, figures
