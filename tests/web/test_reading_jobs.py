"""Statuses, lists, results and cancels, by one application on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from web_helpers import a_job, run_to_its_end

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import Result, Segment
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from web.rendering import PIECE, result_pieces


def test_a_status_tells_where_a_job_stands(api: FlaskClient, store: JobStore) -> None:
    api.post("/v1/jobs", json=a_job("a", tags={"run": "x"}))
    store.claim("init", "a", 0, node="n1", process="p", op="o")
    status = api.get("/v1/jobs/a").get_json()
    assert (status["state"], status["stage"], status["node"], status["attempt"]) == ("running", "init", "n1", 1)
    assert status["tags"] == {"run": "x"}
    assert status["error"] is None


def test_an_id_never_seen_is_not_found_whatever_it_looks_like(api: FlaskClient) -> None:
    for job_id in ("nobody", "a b", "x" * 200, "é", "..%2f..", "%00"):
        for answer in (
            api.get(f"/v1/jobs/{job_id}"),
            api.get(f"/v1/jobs/{job_id}/result"),
            api.delete(f"/v1/jobs/{job_id}"),
        ):
            assert answer.status_code == 404, job_id
            assert answer.mimetype == "application/problem+json"


def test_a_result_is_409_while_the_job_runs_then_200(api: FlaskClient, store: JobStore) -> None:
    api.post("/v1/jobs", json=a_job("a"))
    assert api.get("/v1/jobs/a/result").status_code == 409
    run_to_its_end(store, "a", reward=0.5)
    result = api.get("/v1/jobs/a/result")
    assert result.status_code == 200
    assert result.get_json()["reward"] == 0.5
    assert Result.model_validate(result.get_json()).state == "completed"
    assert api.get("/v1/jobs/a/result?tokens=false").status_code == 200


def test_a_queued_job_is_cancelled_at_once_and_a_running_one_is_asked(api: FlaskClient, store: JobStore) -> None:
    api.post("/v1/jobs", json={"jobs": [a_job("queued"), a_job("running")]})
    store.claim("init", "running", 0, node="n", process="p", op="o")
    queued, running = api.delete("/v1/jobs/queued"), api.delete("/v1/jobs/running")
    assert (queued.status_code, queued.get_json()["state"]) == (202, "cancelled")
    assert (running.status_code, running.get_json()["cancel_requested"]) == (202, True)
    assert api.delete("/v1/jobs/queued").status_code == 200
    assert api.get("/v1/jobs/queued/result").get_json()["reward"] is None


def test_jobs_are_listed_newest_first_page_by_page(api: FlaskClient) -> None:
    ids = [f"job-{i}" for i in range(25)]
    for job_id in ids:
        api.post("/v1/jobs", json=a_job(job_id, tags={"half": str(int(job_id[4:]) % 2)}))
    seen: list[str] = []
    cursor = None
    while True:
        page = api.get("/v1/jobs", query_string={"limit": 10, **({"cursor": cursor} if cursor else {})}).get_json()
        seen += [job["job_id"] for job in page["jobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    odd = api.get("/v1/jobs?tag=half=1&state=queued&limit=1000").get_json()["jobs"]
    assert {job["job_id"] for job in odd} == {i for i in ids if int(i[4:]) % 2}
    assert api.get("/v1/jobs?state=completed").get_json()["jobs"] == []


def test_wrong_parameters_are_named(api: FlaskClient) -> None:
    api.post("/v1/jobs", json=a_job("a"))
    for path, field in (
        ("/v1/jobs?state=lost", "state"),
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=x", "limit"),
        ("/v1/jobs?cursor=abc", "cursor"),
        ("/v1/jobs?unheard=1", "unheard"),
        ("/v1/jobs?limit=1&limit=2", "limit"),
        ("/v1/jobs/a?wait=-1", "wait"),
        ("/v1/jobs/a?wait=nan", "wait"),
        ("/v1/jobs/a/result?tokens=perhaps", "tokens"),
        ("/v1/results?after=yesterday", "after"),
        ("/v1/results?tag=justaname", "tag"),
    ):
        answer = api.get(path)
        assert answer.status_code == 422, path
        assert [error["field"] for error in answer.get_json()["errors"]] == [field]


def test_results_come_in_order_of_finishing_each_once_per_cursor(api: FlaskClient, store: JobStore) -> None:
    ids = [f"j{i}" for i in range(12)]
    api.post("/v1/jobs", json={"jobs": [a_job(i, tags={"run": "b" if i == "j3" else "a"}) for i in ids]})
    for job_id in reversed(ids):
        run_to_its_end(store, job_id)
    seen: list[str] = []
    after = None
    while True:
        page = api.get("/v1/results", query_string={"limit": 5, **({"after": after} if after else {})}).get_json()
        assert page["truncated"] is False
        if not page["results"]:
            break
        seen += [result["job_id"] for result in page["results"]]
        after = page["next"]
    assert seen == ids[::-1]
    only = api.get("/v1/results?tag=run=b").get_json()["results"]
    assert [result["job_id"] for result in only] == ["j3"]


def test_a_wait_for_what_ended_or_beyond_the_waiters_answers_at_once(
    make: Callable[..., Flask], store: JobStore
) -> None:
    api = make(max_waiters=0).test_client()
    api.post("/v1/jobs", json={"jobs": [a_job("ended"), a_job("queued")]})
    run_to_its_end(store, "ended")
    ended, queued = api.get("/v1/jobs/ended?wait=60"), api.get("/v1/jobs/queued?wait=60")
    assert ended.get_json()["state"] == "completed"
    assert (queued.status_code, queued.headers["Retry-After"]) == (200, "1")
    assert api.get("/v1/jobs/queued/result?wait=60").status_code == 409
    assert api.get("/v1/results?wait=60").get_json()["results"] != []


def test_a_streamed_result_is_the_same_json() -> None:
    count = 3 * PIECE + 7
    big = Segment(
        prompt_ids=[1, 2, 3],
        response_ids=list(range(count)),
        loss_mask=[1] * count,
        logprobs=[-0.25] * count,
        policy_versions=[3] * count,
        split_reason="why",
    )
    small = big.model_copy(update={"response_ids": [], "loss_mask": [], "logprobs": [], "policy_versions": []})
    result = Result(
        job_id="a",
        state="completed",
        reward=float("nan"),
        finish_reason="stop",
        messages=[{"role": "user", "content": "\u2028é"}],
        segments=[big, small],
        turns=[],
    )
    pieces = list(result_pieces(result))
    assert json.loads(b"".join(pieces)) == json.loads(result.model_dump_json())
    assert max(map(len, pieces)) < 12 * PIECE


def claim(store: JobStore, message: Message) -> Claim:
    got = store.claim(message.stage, message.job_id, message.fence, node="n", process="p", op=message.stage)
    assert got is not None
    return got


def to(stage: str) -> dict[str, Any]:
    return {"next_stage": stage, "queue": stage, "worked_s": 0}


def test_half_a_surrogate_pair_does_not_hold_up_the_results_behind_it(api: FlaskClient, store: JobStore) -> None:
    """A model may write one in a call's arguments, a handler may find one in a file's name."""
    api.post("/v1/jobs", json={"jobs": [a_job("odd"), a_job("behind")]})
    rollout = claim(store, store.commit(claim(store, Message("init", "init", "odd", 0, 5)), {}, **to("rollout")))
    store.append_turn(rollout, Turn(index=0, messages=[{"role": "assistant", "content": "half \ud83d"}]))
    scoring = claim(store, store.commit(rollout, {}, **to("eval")))
    store.finish(
        scoring, state="completed", finish_reason="stop", reward=1.0, artifacts={"\udcff": ["\udcff"]}, worked_s=0
    )
    run_to_its_end(store, "behind")
    one = api.get("/v1/jobs/odd/result")
    assert one.status_code == 200
    assert one.get_json()["messages"][0]["content"] == "half \ufffd"
    assert one.get_json()["artifacts"] == {"\ufffd": ["\ufffd"]}
    assert [result["job_id"] for result in api.get("/v1/results").get_json()["results"]] == ["odd", "behind"]
